"""Published sequence models, for `benchmarks.weights_parity`.

  PATH benchmarks/peer_weights.py SPEC.json OUT      (PATH: --peer_python)

A program of its own: it needs torch, NumPy and checkouts of the published code,
and nothing of this project. For each case of SPEC it builds the published
module, moves every parameter away from its initial value, and leaves in OUT

    <case>.pt      what torch.save makes of the state_dict
    <case>.npz     the outputs for the histories of SPEC.npz
    about.json     shapes: case -> name -> shape of the state_dict; versions

Where fbgemm_gpu is not installed, its three operators of ragged batches that
the published code calls are stated here in plain PyTorch.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import pathlib
import sys
import types

import numpy as np
import torch


def main(spec_path: str, out: str) -> None:
  torch.manual_seed(0)
  torch.set_num_threads(1)
  define_ragged_operators()
  spec = json.loads(pathlib.Path(spec_path).read_text())
  histories = np.load(pathlib.Path(spec_path).with_suffix('.npz'))
  out, shapes = pathlib.Path(out), {}
  for case in spec['cases']:
    build = build_classic if case['classic'] else build_published
    with contextlib.redirect_stdout(sys.stderr):  # the modules print
      module, run = build(spec['checkouts'][case['checkout']], case)
    with torch.no_grad():
      for name, parameter in module.named_parameters():
        parameter += 0.05 * torch.randn_like(parameter)
        if name in ('item_emb.weight', 'pos_emb.weight'):
          parameter[0] = 0  # the padding of SASRec.pytorch
      outputs = run(module.eval(), histories, case)
    state = module.state_dict()
    shapes[case['case']] = {n: list(x.shape) for n, x in state.items()}
    torch.save(state, out / f'{case["case"]}.pt')
    np.savez(out / f'{case["case"]}.npz', outputs=outputs.numpy())
  about = {'shapes': shapes, 'versions': versions()}
  (out / 'about.json').write_text(json.dumps(about, indent=1))


def versions() -> list[str]:
  """Of what the published code runs on."""
  found = [f'torch {torch.__version__}']
  for name in ('fbgemm-gpu-cpu', 'fbgemm-gpu'):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found.append(f'{name} {importlib.metadata.version(name)}')
  return found


def build_published(checkout: str, case: dict):
  """HSTU or SASRec of generative-recommenders, as its trainer puts it up."""
  if checkout not in sys.path:
    sys.path.insert(0, checkout)
  from generative_recommenders.research.modeling.sequential import (
    embedding_modules,
    hstu,
    input_features_preprocessors,
    output_postprocessors,
    sasrec,
  )
  from generative_recommenders.research.rails.similarities import (
    dot_product_similarity_fn as similarities,
  )

  dim, longest, extra = case['dim'], case['max_len'], case['extra_positions']
  parts = dict(
    max_sequence_len=longest,
    max_output_len=extra,
    embedding_dim=dim,
    num_blocks=case['blocks'],
    num_heads=case['heads'],
    embedding_module=embedding_modules.LocalEmbeddingModule(
      case['rows'] - 1, dim
    ),
    similarity_module=similarities.DotProductSimilarity(),
    input_features_preproc_module=(
      input_features_preprocessors.LearnablePositionalEmbeddingInputFeaturesPreprocessor(
        longest + extra, dim, dropout_rate=0.2
      )
    ),
    output_postproc_module=output_postprocessors.L2NormEmbeddingPostprocessor(
      dim
    ),
    verbose=False,
  )
  if case['model'] == 'hstu':
    module = hstu.HSTU(
      **parts,
      linear_dim=case['dv'],
      attention_dim=case['dqk'],
      normalization='rel_bias',
      linear_config='uvqk',
      linear_activation='silu',
      linear_dropout_rate=0.2,
      attn_dropout_rate=0.0,
    )
  else:
    module = sasrec.SASRec(
      **parts,
      ffn_hidden_dim=case['ffn_dim'],
      ffn_activation_fn='relu',
      ffn_dropout_rate=0.2,
    )
  return module, run_published


def run_published(module, histories, case) -> torch.Tensor:
  """[B, n, D]: histories begin at place 0; the request's time follows."""
  lengths = torch.from_numpy(histories['lengths']).long()
  width = case['max_len'] + case['extra_positions']

  def padded(values, more=0):
    rows = np.zeros((len(lengths), width), np.int64)
    for row, own, length in zip(rows, values, lengths, strict=True):
      row[: length + more] = own[: length + more]
    return torch.from_numpy(rows)

  ids = padded(histories['items'])
  return module(
    past_lengths=lengths,
    past_ids=ids,
    past_embeddings=module.get_item_embeddings(ids),
    past_payloads={'timestamps': padded(histories['times'], more=1)},
  )


def build_classic(checkout: str, case: dict):
  """SASRec of SASRec.pytorch."""
  places = [pathlib.Path(checkout, p) for p in ('python/model.py', 'model.py')]
  file = next(p for p in places if p.exists())
  spec = importlib.util.spec_from_file_location(file.parent.name, file)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  args = types.SimpleNamespace(
    device='cpu',
    hidden_units=case['dim'],
    maxlen=case['max_len'],
    num_blocks=case['blocks'],
    num_heads=case['heads'],
    dropout_rate=0.2,
  )
  return module.SASRec(1, case['rows'] - 1, args), run_classic


def run_classic(module, histories, case) -> torch.Tensor:
  """[B, n, D]: histories end at the last place."""
  width = case['max_len']
  rows = np.zeros((len(histories['lengths']), width), np.int64)
  for row, own, n in zip(
    rows, histories['items'], histories['lengths'], strict=True
  ):
    row[width - n :] = own[:n]
  return module.log2feats(rows)


def define_ragged_operators() -> None:
  """torch.ops.fbgemm.*, as far as the published models call them."""
  if importlib.util.find_spec('fbgemm_gpu'):
    import fbgemm_gpu  # noqa: F401, brings the operators

    return

  def jagged_to_padded_dense(values, offsets, max_lengths, padding_value=0.0):
    ends = offsets[0].tolist()
    shape = (len(ends) - 1, max_lengths[0], values.shape[-1])
    dense = values.new_full(shape, padding_value)
    for i, (begin, end) in enumerate(zip(ends, ends[1:], strict=False)):
      dense[i, : end - begin] = values[begin:end]
    return dense

  def dense_to_jagged(dense, offsets):
    ends = offsets[0].tolist()
    sizes = [b - a for a, b in zip(ends, ends[1:], strict=False)]
    parts = [row[:n] for row, n in zip(dense, sizes, strict=True)]
    return torch.cat(parts), offsets

  def asynchronous_complete_cumsum(lengths):
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))

  for function in (
    jagged_to_padded_dense,
    dense_to_jagged,
    asynchronous_complete_cumsum,
  ):
    setattr(torch.ops.fbgemm, function.__name__, function)


if __name__ == '__main__':
  main(*sys.argv[1:])
