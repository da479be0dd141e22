"""Next-item retrieval: a sequence model, an item table, a sampled loss."""

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import pallas_kernels
from genrec_jax.config import TableSettings
from genrec_jax.config.losses import RetrievalLossConfig
from genrec_jax.contracts import Extensions
from genrec_jax.embedding import lookup
from genrec_jax.features import (
  EVENTS,
  PAD,
  UNREAD,
  Examples,
  ExpectedRead,
  Read,
  TableSpec,
)
from genrec_jax.models import MODELS, layers
from genrec_jax.numerics.products import (
  Product,
  Rules,
  assign_products,
  find_sites,
)
from genrec_jax.parallel import collectives
from genrec_jax.tasks import losses
from genrec_jax.tasks.settings import task_settings
from pallas_kernels.hashing import element_bits
from pallas_kernels.jagged_embedding import cpu

ITEMS = 'items'  # the table of this task
BIASES = 'item_biases'  # and of `loss.item_bias`, a number for each item
FULL_SOFTMAX_CHUNK = 256
MAX_LOGITS = 1 << 22  # of a full softmax, alive at once


class Retrieval:
  """The task 'retrieval', a `contracts.Task`.

  Attributes:
    table: spec of the item table.
    graphdef: the model's structure; `nnx.merge(graphdef, params)` is the model.
    sites: name -> `Site` of each weight that activations are multiplied with.
  """

  progress_unit = 'tokens'  # the unit in which progress is counted
  measurements = {'loss': 'mean'}

  def __init__(
    self,
    model_name: str,
    model: dict,
    loss: dict,
    *,
    corpus: np.ndarray,
    rows: int,
    item_counts: np.ndarray | None = None,
    table_update: str = 'dense',
    table_dtype: str = 'float32',
    init_std: float = 0.02,
    settings: TableSettings = TableSettings(),
    policy: Rules = (),
    extra_products: Mapping[str, Product] | None = None,
  ):
    """Builds the task.

    Args:
      model_name: key of `MODELS`.
      model: fields of that model's `Config`.
      loss: fields of `RetrievalLossConfig`.
      corpus: `[C]` candidate item indices, sorted.
      rows: rows of the item table, padding row included.
      item_counts: `[rows]` how often each is a target, for `loss.logq`.
      table_update: 'dense' or a name of `ROW_OPTIMIZERS`.
      table_dtype: of its rows; 'float32' where optax updates them.
      init_std: deviation of the table's initialiser.
      settings: of the table, in place of these three.
      policy: (regex of a weight, product) pairs, see `numerics.products`.
      extra_products: further products by name.
    """
    self._model = MODELS[model_name]
    self.model_config = self._model.Config(**model)
    self.loss_config = RetrievalLossConfig(**loss)
    if len(corpus) < 2:
      raise ValueError(f'the catalogue has {len(corpus)} items, needs 2')
    self.table = settings(
      TableSpec(
        ITEMS, rows, self.model_config.dim, init_std, table_update, table_dtype
      )
    )
    self._biases = None
    if self.loss_config.item_bias:
      self._biases = settings(
        TableSpec(BIASES, rows, 1, 0.0, table_update, table_dtype)
      )
      if self._biases.id_map != 'identity':
        raise ValueError(
          f'table {BIASES!r} has id_map={self._biases.id_map!r}, and items '
          'would share the number that is to part them: name the table '
          f'{ITEMS!r} alone in config.tables'
        )
    self._rows = rows  # of ids, which may be more than those of the table
    if self.loss_config.name == 'full_softmax' and (
      self.table.id_map != 'identity'
    ):
      raise ValueError(
        "loss.name='full_softmax' scores every row of the table as an item, "
        f'and id_map={self.table.id_map!r} of config.tables lets items share '
        "rows; choose loss.name='sampled_softmax'"
      )
    self.corpus = np.asarray(corpus, np.int32)
    self._contiguous = bool(
      self.corpus[0] == 1 and self.corpus[-1] == len(self.corpus)
    )
    self._shares = None
    if self.loss_config.logq:
      if item_counts is None:
        raise ValueError('loss.logq needs the item counts of the training data')
      shares = np.maximum(item_counts, 0.5) / max(1, item_counts.sum())
      self._shares = shares.astype(np.float32)
    self.policy, self._extra_products = tuple(policy), extra_products
    model = nnx.eval_shape(self._build_model)
    self.graphdef, self.sites = nnx.graphdef(model), find_sites(model)

  @classmethod
  def from_config(
    cls,
    config,
    corpus: np.ndarray,
    item_counts: np.ndarray,
    extensions: Extensions | None = None,
  ) -> 'Retrieval':
    """The task that a config describes.

    Args:
      config: of the experiment.
      corpus: `[C]` the items that may be recommended.
      item_counts: `[rows]` occurrences in the training split.
      extensions: what is used from outside the library.
    """
    model = config.model.to_dict()
    return cls(
      model.pop('name'),
      model,
      config.loss.to_dict(),
      corpus=corpus,
      rows=len(item_counts),
      item_counts=item_counts,
      **task_settings(config, extensions),
    )

  def _build_model(self, key=None) -> nnx.Module:
    rngs = nnx.Rngs(0 if key is None else key)
    model = self._model(self.model_config, rngs)
    return assign_products(model, self.policy, self._extra_products)

  def tables(self) -> dict[str, TableSpec]:
    tables = {ITEMS: self.table}
    return tables if self._biases is None else tables | {BIASES: self._biases}

  def init(self, key: jax.Array) -> dict:
    """Fresh parameters of the model, a plain nested dict."""
    return nnx.to_pure_dict(nnx.state(self._build_model(key), nnx.Param))

  def reads(self, batch: Examples, key: jax.Array) -> dict[str, Read]:
    """What the loss of a batch reads: histories, targets and negatives."""
    reads = self.reads_for('predict', batch)
    if self.loss_config.name == 'full_softmax':
      return reads | self._add_biases({'catalogue': Read(None, ITEMS)})
    negatives = self._draw_negatives(batch, jax.random.split(key)[1])
    scored = {
      'target': _read_items(batch.jagged[EVENTS]['next_item']),
      'negatives': _read_items(negatives),
    }
    return reads | self._add_biases(scored)

  def _add_biases(self, reads: dict) -> dict:
    """The reads of items, and those of their biases, if they have any."""
    if self._biases is None:
      return reads
    return reads | {
      f'{name}_bias': dataclasses.replace(read, table=BIASES)
      for name, read in reads.items()
    }

  def reads_for(self, purpose: str, batch) -> dict[str, Read]:
    """What is read outside of training.

    Args:
      purpose: 'predict', for `encode` and `predict`, or 'items', for `vectors`.
      batch: `Examples`, or item indices of any shape for 'items'.
    """
    if purpose == 'items':
      return self._add_biases({'items': Read(batch, ITEMS)})
    return {'history': _read_items(batch.jagged[EVENTS]['item'])}

  def count_evaluation_bytes(self, shards: int) -> int:
    """What an evaluation keeps on each of some devices, beside the weights."""
    width = self.table.dim + (self._biases is not None)
    return 4 * -(-len(self.corpus) // shards) * width

  def expected_reads(self) -> dict[str, ExpectedRead]:
    """Reads of the longest example there may be."""
    c = self.loss_config
    tokens = self.model_config.max_len
    reads = {'history': ExpectedRead(ITEMS, tokens)}
    if c.name != 'full_softmax':
      each = 0 if c.sampler in ('shared', 'in_batch') else c.negatives
      scored = {
        'target': ExpectedRead(ITEMS, tokens),
        'negatives': ExpectedRead(ITEMS, tokens * each),
      }
      reads |= self._add_biases(scored)
    return reads

  def encode(self, params, rows, batch: Examples, key=None) -> jax.Array:
    """Representation of every token, `[T, D]` float32."""
    model = nnx.merge(self.graphdef, params_state(params))
    return self.represent(
      model(rows['history'].all(), batch.jagged[EVENTS], key)
    )

  def represent(self, x: jax.Array) -> jax.Array:
    """What items are scored against, of tokens as the model gives them."""
    if self.loss_config.l2_normalize:
      x = layers.l2_normalize(x)
    x = x.astype(jnp.float32)
    if self._biases is None:
      return x
    # Against the bias of an item, see `_append_biases`.
    return jnp.concatenate([x, jnp.ones((*x.shape[:-1], 1))], axis=-1)

  def predict(self, params, rows, batch: Examples) -> jax.Array:
    """Query of each sequence, asked after its last token: `[B, D]`."""
    return pallas_kernels.last_tokens(
      self.encode(params, rows, batch), batch.jagged[EVENTS].lengths
    )

  def vectors(self, rows) -> jax.Array:
    """Vectors of the items of `reads_for('items', ...)`, `[..., D]`.

    The score of an item is its product with a query of `predict`.
    """
    vectors = self._item_vectors(rows['items'].all())
    if self._biases is None:
      return vectors
    return self._append_biases(vectors, rows['items_bias'].all())

  def _append_biases(self, vectors: jax.Array, biases: jax.Array) -> jax.Array:
    """Vectors whose product with a query has the bias of their item."""
    # Scores are divided by the temperature in the loss, and biases are not.
    biases = jnp.float32(self.loss_config.temperature) * biases
    return jnp.concatenate([vectors.astype(jnp.float32), biases], axis=-1)

  def count(self, batch: Examples) -> tuple[jax.Array, jax.Array]:
    """(tokens, sequences that have any) of a batch."""
    lengths = batch.jagged[EVENTS].lengths
    return lengths.sum(), (lengths > 0).sum()

  def loss(self, params, rows, batch: Examples, key: jax.Array):
    """Sum of the positions' losses, and how many they are.

    Args:
      params: the model's parameters.
      rows: a view of each feature that `reads` announced.
      batch: B sequences, of one shard and microbatch.
      key: random key; the same as given to `reads`.

    Returns:
      {measurement: (value, weight)}.
    """
    model_key, _ = jax.random.split(key)
    c = self.loss_config
    queries = self.encode(params, rows, batch, model_key)
    queries = queries / jnp.float32(c.temperature)
    targets = batch.jagged[EVENTS]['next_item']
    weights = (targets != PAD).astype(jnp.float32)
    log_q = self._log_q(batch)
    total = self._sum_losses(rows, queries, targets, weights, log_q)
    return {'loss': (total, jnp.sum(weights))}

  def _log_q(self, batch: Examples) -> jax.Array | None:
    """Log of how likely each item is to be a negative, but for a constant.

    A distinct item of a batch is as likely as the batch is to hold it at all,
    `1 - (1 - p)^n` for a share p of the targets and n of them.
    """
    if self._shares is None:
      return None
    shares = jnp.asarray(self._shares)
    if self.loss_config.sampler == 'in_batch_unique':
      whole = batch if batch.whole is None else batch.whole
      targets = jnp.sum(whole.jagged[EVENTS]['next_item'] != PAD)
      targets = jnp.maximum(collectives.sum_over_shards(targets), 1)
      # Digits of a small share would be lost in 1 - p.
      shares = -jnp.expm1(targets.astype(jnp.float32) * jnp.log1p(-shares))
    return jnp.log(shares)

  def _draw_negatives(self, batch: Examples, key) -> jax.Array:
    """Item ids `[T, R]`, or `[R]` where the batch shares them.

    They are the same for a token however the batch is cut into shards. A token
    without a target has PAD in their place, and so has a batch without any:
    what is not needed is not read.
    """
    c = self.loss_config
    events = batch.jagged[EVENTS]
    whole = events if batch.whole is None else batch.whole.jagged[EVENTS]
    seed = jax.random.bits(key)
    columns = jnp.arange(c.negatives)
    targets = whole['next_item']
    if c.sampler in ('shared', 'in_batch'):
      bits = element_bits(seed, jnp.uint32(0), columns)
      needed = collectives.sum_over_shards(jnp.sum(targets != PAD)) > 0
    else:
      tokens = jnp.arange(events['item'].shape[0])
      if events.first is not None:
        tokens += events.first
      bits = element_bits(seed, tokens[:, None], columns[None])
      needed = (events['next_item'] != PAD)[:, None]
    if c.sampler == 'in_batch':
      targets = collectives.gather(targets)
      # The n-th target is where n have been counted: PAD counts for nothing.
      count = jnp.cumsum(targets != PAD)
      place = scale_bits(bits, jnp.maximum(count[-1], 1))
      items = targets[jnp.searchsorted(count, place + 1)]
    elif c.sampler == 'in_batch_unique':
      targets = collectives.gather(targets)
      size = min(targets.shape[0], self._rows)
      # PAD sorts first; start behind it. Repeats of the largest id fill up.
      distinct = jnp.unique(targets, size=size, fill_value=2**31 - 1)
      first = (distinct[0] == PAD).astype(jnp.int32)
      last = jnp.maximum(jnp.sum(distinct < 2**31 - 1), first + 1)
      place = first + scale_bits(bits, last - first)
      items = jnp.minimum(distinct[place], self._rows - 1)
    else:
      place = scale_bits(bits, len(self.corpus))
      corpus = jnp.asarray(self.corpus)
      items = place + 1 if self._contiguous else corpus[place]
    return jnp.where(needed, items, PAD)

  def _sum_losses(self, rows, queries, positives, weights, log_q) -> jax.Array:
    """Sum of the positions' losses."""
    c = self.loss_config
    if c.name == 'full_softmax':
      table = self._item_vectors(rows['catalogue'].whole())
      if self._biases is not None:
        table = self._append_biases(table, rows['catalogue_bias'].whole())
      return self._full_softmax(table, queries, positives, weights)
    biases = None
    if self._biases is not None:
      queries = queries[:, :-1]
      biases = tuple(
        rows[f'{name}_bias'].all()[..., 0] for name in ('target', 'negatives')
      )
    # Both views share the rows; the negatives' are gathered chunk by chunk,
    # since all at once they would be R times the batch.
    table, target = rows['target'].rows_and_index()
    _, index = rows['negatives'].rows_and_index()
    negatives = rows['negatives'].ids
    table = self._item_vectors(table)
    if log_q is not None:  # UNREAD has no share
      log_q = log_q[positives], log_q[jnp.maximum(negatives, PAD)]
    if negatives.ndim == 1:  # shared: one matmul for the whole batch
      positive = jnp.einsum(
        'td,td->t', queries, lookup.take_rows(table, target)
      )
      negative = queries @ lookup.take_rows(table, index).T
      return self._sum_logit_losses(
        positive, negative, positives, negatives[None], weights, log_q, biases
      )

    def sum_losses(logits, biases, extra):
      return self._sum_logit_losses(logits[:, 0], logits[:, 1:], *extra, biases)

    def score_in_cache(table, tokens, extra):
      (queries, biases), (index, *extra) = tokens, extra
      logits = pallas_kernels.score_rows(queries, table, index)
      return sum_losses(logits, biases, extra)

    def score_vectors(vectors, tokens, extra):
      queries, biases = tokens
      logits = jnp.einsum('td,trd->tr', queries, vectors)
      return sum_losses(logits, biases, extra)

    index = jnp.concatenate([target[:, None], index], axis=-1)
    tokens, extra = (queries, biases), (positives, negatives, weights, log_q)
    if c.chunk is None and cpu.why_not() is None:
      # Each chunk has a gradient of the whole table: one, if memory allows.
      chunk = losses.cut_scores(*index.shape)
      return losses.sum_over_chunks(
        score_in_cache, chunk, table, None, tokens, (index, *extra)
      )
    chunk = c.chunk or losses.chunk_for(index.shape[1], table.shape[1])
    chunk = math.gcd(queries.shape[0], chunk)
    return losses.sum_over_chunks(
      score_vectors, chunk, table, index, tokens, extra
    )

  def _full_softmax(self, table, queries, positives, weights) -> jax.Array:
    """Softmax over every candidate, a chunk of positions at a time."""
    vectors = table[self.corpus]
    place = jnp.searchsorted(jnp.asarray(self.corpus), positives)
    place = jnp.minimum(place, len(self.corpus) - 1)
    most = max(8, MAX_LOGITS // len(self.corpus))
    # A power of two, so that it divides the capacities of batches.
    chunk = self.loss_config.chunk or FULL_SOFTMAX_CHUNK
    chunk = min(chunk, 1 << (most.bit_length() - 1))

    def chunk_loss(vectors, queries, extra):
      place, weights = extra
      return jnp.sum(losses.full_softmax(queries @ vectors.T, place) * weights)

    chunk = math.gcd(queries.shape[0], chunk)
    return losses.sum_over_chunks(
      chunk_loss, chunk, vectors, None, queries, (place, weights)
    )

  def _sum_logit_losses(
    self, positive, negative, positives, negatives, weights, log_q, biases
  ):
    """Logits of some positions -> the sum of their losses."""
    if biases is not None:
      positive += biases[0]
      negative += jnp.atleast_2d(biases[1])
    if log_q is not None:
      positive -= log_q[0]
      negative -= jnp.atleast_2d(log_q[1])
    hit = negatives == positives[:, None]
    if not self.loss_config.mask_collisions:
      hit = jnp.zeros_like(hit)
    loss = self._per_token_loss()(positive, negative, hit)
    return jnp.sum(jnp.where(weights > 0, loss * weights, 0.0))

  def _item_vectors(self, rows: jax.Array) -> jax.Array:
    return layers.l2_normalize(rows) if self.loss_config.l2_normalize else rows

  def _per_token_loss(self):
    c = self.loss_config
    if c.name == 'sampled_softmax':
      return losses.sampled_softmax
    if c.name == 'bce':
      return losses.binary_cross_entropy
    beta = losses.gbce_beta(c.negatives, len(self.corpus), c.gbce_t)
    return lambda p, n, h: losses.generalised_bce(p, n, h, beta=beta)


def scale_bits(bits: jax.Array, bound) -> jax.Array:
  """Random bits as integers in [0, bound), int32.

  Uniform to within bound / 2**32, one in 4,000 for a million items.
  `jax.random.randint` is no better above 2**16, and twice the work.
  """
  return (bits % jnp.asarray(bound).astype(jnp.uint32)).astype(jnp.int32)


def _read_items(items: jax.Array) -> Read:
  """Reads items; PAD is none of them, and touches no row."""
  return Read(jnp.where(items == PAD, UNREAD, items), ITEMS)


def params_state(params: dict) -> nnx.State:
  """Plain nested dict -> the state `nnx.merge` takes."""
  return nnx.State(jax.tree.map(nnx.Param, params))
