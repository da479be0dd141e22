// The 'cpu' backend of jagged_embedding: what XLA calls.
//
// native.py compiles this file where it is used, and loads it for jax.ffi. Two
// rules hold everywhere: an output row is written by one thread, its summands
// in their order in the input, so that the result does not depend on threads;
// and no index read from an array is trusted.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu_groups.h"
#include "cpu_lookup.h"
#include "cpu_optimizers.h"
#include "cpu_threads.h"
#include "xla/ffi/api/ffi.h"

namespace {

template <typename F>
ffi::Error EachType(ffi::DataType type, F run) {
  switch (type) {
    case ffi::F32:
      run(float{});
      return ffi::Error::Success();
    case ffi::BF16:
      run(Bf16{});
      return ffi::Error::Success();
    default:
      return ffi::Error::InvalidArgument("table must be float32 or bfloat16");
  }
}

template <typename T, typename Buffer>
Table<T> TableOf(Buffer& buffer) {
  return {static_cast<T*>(buffer.untyped_data()), buffer.dimensions()[0],
          buffer.dimensions()[1]};
}

const float* OrNull(const Floats& x) {
  return x.element_count() ? x.typed_data() : nullptr;
}

ffi::Error BagImpl(ffi::ThreadPool pool, ffi::AnyBuffer table, Ids ids,
                   Ids lengths, Floats weights, ffi::Result<Floats> out,
                   int64_t threads) {
  return EachType(table.element_type(), [&](auto type) {
    Bags(pool, threads, TableOf<decltype(type)>(table), ids, lengths,
         OrNull(weights), out->typed_data());
  });
}

ffi::Error GatherImpl(ffi::ThreadPool pool, ffi::AnyBuffer table, Ids ids,
                      Ids count, ffi::Result<ffi::AnyBuffer> out, bool spare,
                      int64_t threads) {
  return EachType(table.element_type(), [&](auto type) {
    using T = decltype(type);
    T fill;
    const uint32_t nan = 0x7fc00000;  // the upper half is bfloat16's
    std::memcpy(&fill, reinterpret_cast<const char*>(&nan) + 4 - sizeof fill,
                sizeof fill);
    Gather(pool, threads, TableOf<T>(table), ids, count.typed_data()[0], spare,
           fill, static_cast<T*>(out->untyped_data()));
  });
}

ffi::Error DotsImpl(ffi::ThreadPool pool, ffi::AnyBuffer table, Ids ids,
                    Ids lengths, Floats grads, ffi::Result<Floats> out,
                    int64_t threads) {
  return EachType(table.element_type(), [&](auto type) {
    Dots(pool, threads, TableOf<decltype(type)>(table), ids, lengths,
         grads.typed_data(), out->typed_data());
  });
}

ffi::Error MergeImpl(ffi::ThreadPool pool, Ids ids, Ids lengths, Floats weights,
                     Floats grads, ffi::Result<Ids> out_ids,
                     ffi::Result<Floats> out, bool bagged, int64_t rows,
                     int64_t threads) {
  const int64_t dim = grads.dimensions()[1], n = out_ids->element_count();
  const Groups groups(ids, lengths, bagged, OrNull(weights), grads.typed_data(),
                      rows, dim);
  Parallel(pool, threads, n, 2048, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      float* row = out->typed_data() + g * dim;
      if (g + kAhead < groups.size()) groups.Prefetch(g + kAhead);
      if (g >= groups.size()) {
        out_ids->typed_data()[g] = rows;
        std::fill(row, row + dim, 0.0f);
        continue;
      }
      out_ids->typed_data()[g] = groups.id(g);
      const float* grad = groups.Gradient(g, row);
      if (grad != row) std::memcpy(row, grad, dim * sizeof(float));
    }
  });
  return ffi::Error::Success();
}

template <typename Source>
ffi::Error Update(ffi::ThreadPool& pool, int64_t threads, const Source& source,
                  ffi::RemainingRets& out, const Floats& scalars,
                  const ffi::Buffer<ffi::U32>& seed, int64_t optimizer,
                  float eps, double beta1, double beta2, bool stochastic) {
  auto table = out.get<ffi::AnyBuffer>(0);
  if (!table) return table.error();
  const float* x = scalars.typed_data();
  return EachType((*table)->element_type(), [&](auto type) {
    using T = decltype(type);
    Rows<T> rows{TableOf<T>(**table),
                 {},
                 {x[0], eps, beta1, beta2, x[1], x[2]},
                 {stochastic, seed.typed_data()[0]}};
    for (size_t i = 1; i < out.size() && i < 3; ++i)
      rows.slots[i - 1] = (*out.get<Floats>(i))->typed_data();
    switch (optimizer) {
      case 0: return UpdateRows<Sgd>(pool, threads, rows, source);
      case 1: return UpdateRows<RowAdagrad>(pool, threads, rows, source);
      case 2: return UpdateRows<Adagrad>(pool, threads, rows, source);
      case 3: return UpdateRows<Adam>(pool, threads, rows, source);
    }
  });
}

// Results are the table and the slots, in the place of the last arguments.
ffi::Error UpdateImpl(ffi::ThreadPool pool, Floats scalars,
                      ffi::Buffer<ffi::U32> seed, Ids ids, Floats grads,
                      ffi::RemainingArgs, ffi::RemainingRets out,
                      int64_t optimizer, float eps, double beta1, double beta2,
                      bool stochastic, int64_t threads) {
  const Merged merged(ids, grads.typed_data(), grads.dimensions()[1]);
  return Update(pool, threads, merged, out, scalars, seed, optimizer, eps,
                beta1, beta2, stochastic);
}

ffi::Error BagUpdateImpl(ffi::ThreadPool pool, Floats scalars,
                         ffi::Buffer<ffi::U32> seed, Ids ids, Ids lengths,
                         Floats weights, Floats grads, ffi::RemainingArgs,
                         ffi::RemainingRets out, int64_t optimizer, float eps,
                         double beta1, double beta2, bool stochastic, bool bagged,
                         int64_t threads) {
  auto table = out.get<ffi::AnyBuffer>(0);
  if (!table) return table.error();
  const Groups groups(ids, lengths, bagged, OrNull(weights), grads.typed_data(),
                      (*table)->dimensions()[0], grads.dimensions()[1]);
  return Update(pool, threads, groups, out, scalars, seed, optimizer, eps,
                beta1, beta2, stochastic);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    Bag, BagImpl,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<ffi::AnyBuffer>()
        .Arg<Ids>()
        .Arg<Ids>()
        .Arg<Floats>()
        .Ret<Floats>()
        .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    GatherRows, GatherImpl,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<ffi::AnyBuffer>()
        .Arg<Ids>()
        .Arg<Ids>()
        .Ret<ffi::AnyBuffer>()
        .Attr<bool>("spare")
        .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    WeightGradient, DotsImpl,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<ffi::AnyBuffer>()
        .Arg<Ids>()
        .Arg<Ids>()
        .Arg<Floats>()
        .Ret<Floats>()
        .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    Merge, MergeImpl,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<Ids>()
        .Arg<Ids>()
        .Arg<Floats>()
        .Arg<Floats>()
        .Ret<Ids>()
        .Ret<Floats>()
        .Attr<bool>("bagged")
        .Attr<int64_t>("rows")
        .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    UpdateMerged, UpdateImpl,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<Floats>()
        .Arg<ffi::Buffer<ffi::U32>>()
        .Arg<Ids>()
        .Arg<Floats>()
        .RemainingArgs()
        .RemainingRets()
        .Attr<int64_t>("optimizer")
        .Attr<float>("eps")
        .Attr<double>("beta1")
        .Attr<double>("beta2")
        .Attr<bool>("stochastic")
        .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    BagUpdate, BagUpdateImpl,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<Floats>()
        .Arg<ffi::Buffer<ffi::U32>>()
        .Arg<Ids>()
        .Arg<Ids>()
        .Arg<Floats>()
        .Arg<Floats>()
        .RemainingArgs()
        .RemainingRets()
        .Attr<int64_t>("optimizer")
        .Attr<float>("eps")
        .Attr<double>("beta1")
        .Attr<double>("beta2")
        .Attr<bool>("stochastic")
        .Attr<bool>("bagged")
        .Attr<int64_t>("threads"));
