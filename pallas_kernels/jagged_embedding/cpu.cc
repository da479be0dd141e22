// The 'cpu' backend of jagged_embedding: what XLA calls.
//
// native.py compiles this file where it is used, and loads it for jax.ffi. Two
// rules hold everywhere: an output row is written by one thread, its summands
// in their order in the input, so that the result does not depend on threads;
// and no index read from an array is trusted.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu_groups.h"
#include "cpu_lookup.h"
#include "cpu_optimizers.h"
#include "cpu_packed.h"
#include "cpu_scores.h"
#include "cpu_threads.h"
#include "cpu_update.h"
#include "xla/ffi/api/ffi.h"

namespace {

using Numbers = ffi::Buffer<ffi::U32>;

// A function that XLA may call: what is thrown in it must not reach XLA, which
// knows no exceptions.
template <auto F>
struct Guarded;
template <typename... Args, ffi::Error (*F)(Args...)>
struct Guarded<F> {
  static ffi::Error Call(Args... args) {
    try {
      return F(std::move(args)...);
    } catch (const std::bad_alloc&) {
      return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                        "jagged_embedding: not enough memory");
    } catch (const std::exception& error) {
      return ffi::Error::Internal(error.what());
    }
  }
};

template <typename F>
ffi::Error EachType(ffi::DataType type, F run) {
  switch (type) {
    case ffi::F32:
      run(float{});
      return ffi::Error::Success();
    case ffi::BF16:
      run(Bf16{});
      return ffi::Error::Success();
    case ffi::F16:
      run(Fp16{});
      return ffi::Error::Success();
    default:
      return ffi::Error::InvalidArgument("table must be float32 or 16 bits");
  }
}

template <typename T, typename Buffer>
Table<T> TableOf(Buffer& buffer) {
  return {static_cast<T*>(buffer.untyped_data()), buffer.dimensions()[0],
          buffer.dimensions()[1]};
}

template <typename Buffer>
auto OrNull(const Buffer& x) {
  return x.element_count() ? x.typed_data() : nullptr;
}

inline float NanOf(float) { return kNan; }
inline Bf16 NanOf(Bf16) { return {0x7fc0}; }
inline Fp16 NanOf(Fp16) { return {0x7e00}; }

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
    Gather(pool, threads, TableOf<T>(table), ids, count.typed_data()[0], spare,
           NanOf(type), static_cast<T*>(out->untyped_data()));
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

ffi::Error ScoresImpl(ffi::ThreadPool pool, Floats table, Floats queries,
                      Ids ids, ffi::Result<Floats> out, int64_t threads) {
  const auto shape = ids.dimensions();
  Scores(pool, threads, TableOf<float>(table), queries.typed_data(),
         ids.typed_data(), shape[0], shape[1], out->typed_data());
  return ffi::Error::Success();
}

ffi::Error ScoreGradientsImpl(ffi::ThreadPool pool, Floats table,
                              Floats queries, Ids ids, Floats grads,
                              ffi::Result<Floats> of_table,
                              ffi::Result<Floats> of_queries,
                              int64_t threads) {
  const auto shape = ids.dimensions();
  QueryGradients(pool, threads, TableOf<float>(table), ids.typed_data(),
                 grads.typed_data(), shape[0], shape[1],
                 of_queries->typed_data());
  RowGradients(pool, threads, queries.typed_data(), ids.typed_data(),
               grads.typed_data(), shape[0], shape[1],
               TableOf<float>(*of_table));
  return ffi::Error::Success();
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

using Constants = ffi::Span<const double>;

// The settings of each group, and of rows whose group does not exist: what they
// become must be seen.
std::vector<Settings> SettingsOf(const Constants& constants,
                                 const Floats& scalars, bool row_count) {
  std::vector<Settings> all;
  const double* c = constants.begin();
  const float* x = scalars.typed_data();
  for (; c != constants.end(); c += kConstants, x += 3)
    all.push_back({{c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], row_count},
                   x[0],
                   {x[1], x[2]}});
  all.push_back(all.front());
  all.back().rate = kNan;
  return all;
}

template <typename Source>
ffi::Error RunUpdate(ffi::ThreadPool& pool, int64_t threads,
                     const Source& source, ffi::RemainingRets& out,
                     std::string_view optimizer, Update& update) {
  auto table = out.get<ffi::AnyBuffer>(0);
  if (!table) return table.error();
  update.optimizer = OptimizerOf(optimizer);
  if (!update.optimizer)
    return ffi::Error::InvalidArgument("no such optimizer");
  for (size_t i = 1; i < out.size(); ++i) {
    auto slot = out.get<Floats>(i);
    if (!slot) return slot.error();
    const auto shape = (*slot)->dimensions();
    update.slots.push_back(
        {(*slot)->typed_data(), shape.size() > 1 ? shape[1] : 1});
  }
  return EachType((*table)->element_type(), [&](auto type) {
    UpdateRows(pool, threads, TableOf<decltype(type)>(**table), update, source);
  });
}

// Results are the table and the slots, in the place of the last arguments.
ffi::Error UpdateImpl(ffi::ThreadPool pool, Floats scalars, Numbers seed,
                      Numbers rows, Numbers first_columns, Ids groups, Ids ids,
                      Floats grads, ffi::RemainingArgs,
                      ffi::RemainingRets out, std::string_view optimizer,
                      Constants constants, bool row_count, bool stochastic,
                      int64_t threads) {
  const Merged merged(ids, grads.typed_data(), grads.dimensions()[1]);
  const Chance chance{stochastic, seed.typed_data()[0], OrNull(rows),
                      OrNull(first_columns)};
  Update update{nullptr, SettingsOf(constants, scalars, row_count),
                OrNull(groups), chance, {}};
  return RunUpdate(pool, threads, merged, out, optimizer, update);
}

ffi::Error BagUpdateImpl(ffi::ThreadPool pool, Floats scalars, Numbers seed,
                         Ids ids, Ids lengths, Floats weights, Floats grads,
                         ffi::RemainingArgs, ffi::RemainingRets out,
                         std::string_view optimizer, Constants constants,
                         bool row_count, bool stochastic, bool bagged,
                         int64_t threads) {
  auto table = out.get<ffi::AnyBuffer>(0);
  if (!table) return table.error();
  const Groups groups(ids, lengths, bagged, OrNull(weights), grads.typed_data(),
                      (*table)->dimensions()[0], grads.dimensions()[1]);
  const Chance chance{stochastic, seed.typed_data()[0], nullptr, nullptr};
  Update update{nullptr, SettingsOf(constants, scalars, row_count), nullptr,
                chance, {}};
  return RunUpdate(pool, threads, groups, out, optimizer, update);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    Bag, Guarded<BagImpl>::Call,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<ffi::AnyBuffer>()
        .Arg<Ids>()
        .Arg<Ids>()
        .Arg<Floats>()
        .Ret<Floats>()
        .Attr<int64_t>("threads"));

ffi::Error PackedBagImpl(ffi::ThreadPool pool, ffi::Buffer<ffi::U8> rows,
                         Ids ids, Ids lengths, Floats weights,
                         ffi::Result<Floats> out, int64_t bits, bool leading,
                         bool half, int64_t threads) {
  const int64_t columns = out->dimensions()[1], numbers = half ? 4 : 8;
  const int64_t codes = (columns * bits + 7) / 8;
  const PackedTable table = {
      rows.typed_data(), rows.dimensions()[0], rows.dimensions()[1],
      columns, leading ? numbers : 0, leading ? 0 : codes, half};
  if (table.bytes != codes + numbers)
    return ffi::Error::InvalidArgument("rows of another number of bytes");
  const auto run = bits == 8   ? PackedBags<8>
                   : bits == 4 ? PackedBags<4>
                   : bits == 2 ? PackedBags<2>
                               : nullptr;
  if (!run) return ffi::Error::InvalidArgument("bits must be 8, 4 or 2");
  run(pool, threads, table, ids, lengths, OrNull(weights), out->typed_data());
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    PackedBag, Guarded<PackedBagImpl>::Call,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<ffi::Buffer<ffi::U8>>()
        .Arg<Ids>()
        .Arg<Ids>()
        .Arg<Floats>()
        .Ret<Floats>()
        .Attr<int64_t>("bits")
        .Attr<bool>("leading")
        .Attr<bool>("half")
        .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    GatherRows, Guarded<GatherImpl>::Call,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<ffi::AnyBuffer>()
        .Arg<Ids>()
        .Arg<Ids>()
        .Ret<ffi::AnyBuffer>()
        .Attr<bool>("spare")
        .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    WeightGradient, Guarded<DotsImpl>::Call,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<ffi::AnyBuffer>()
        .Arg<Ids>()
        .Arg<Ids>()
        .Arg<Floats>()
        .Ret<Floats>()
        .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    ScoreRows, Guarded<ScoresImpl>::Call,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<Floats>()
        .Arg<Floats>()
        .Arg<Ids>()
        .Ret<Floats>()
        .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    ScoreGradients, Guarded<ScoreGradientsImpl>::Call,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<Floats>()
        .Arg<Floats>()
        .Arg<Ids>()
        .Arg<Floats>()
        .Ret<Floats>()
        .Ret<Floats>()
        .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    Merge, Guarded<MergeImpl>::Call,
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
    UpdateMerged, Guarded<UpdateImpl>::Call,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<Floats>()
        .Arg<Numbers>()
        .Arg<Numbers>()
        .Arg<Numbers>()
        .Arg<Ids>()
        .Arg<Ids>()
        .Arg<Floats>()
        .RemainingArgs()
        .RemainingRets()
        .Attr<std::string_view>("optimizer")
        .Attr<Constants>("constants")
        .Attr<bool>("row_count")
        .Attr<bool>("stochastic")
        .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    BagUpdate, Guarded<BagUpdateImpl>::Call,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<Floats>()
        .Arg<Numbers>()
        .Arg<Ids>()
        .Arg<Ids>()
        .Arg<Floats>()
        .Arg<Floats>()
        .RemainingArgs()
        .RemainingRets()
        .Attr<std::string_view>("optimizer")
        .Attr<Constants>("constants")
        .Attr<bool>("row_count")
        .Attr<bool>("stochastic")
        .Attr<bool>("bagged")
        .Attr<int64_t>("threads"));
