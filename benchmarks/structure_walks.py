"""Where one writes for an addition: an existing one, walked place by place.

`after` names every place that an addition of the last kind had to touch, as
file -> texts that stand there; `structure.check_walks` fails where one of them
is gone. Left out are places that only a peculiarity of that example needs, and
tests that happen to use it. `before` are the counts of a review of commit
a521de1: (files, places), None for what it did not count or what could not be
done.
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Walk:
  """What an addition touches.

  Attributes:
    job: what is added.
    way: 'built in', or 'from outside' the packages.
    example: the addition that was walked.
    before: (files, places) in commit a521de1.
    after: file -> texts of the places.
  """

  job: str
  way: str
  example: str
  before: tuple[int | None, int | None]
  after: Mapping[str, tuple[str, ...]]


BUILT_IN, OUTSIDE = 'built in', 'from outside'

WALKS = (
  Walk(
    'a ranking model',
    BUILT_IN,
    'FinalMLP',
    (9, 12),
    {
      'genrec_jax/models/finalmlp.py': ('class FinalMLP',),
      'genrec_jax/models/__init__.py': (
        '  finalmlp,',
        "'finalmlp': finalmlp.FinalMLP",
      ),
      'genrec_jax/config/models.py': ('class FinalMLP',),
      'genrec_jax/config/rankers.py': ('def finalmlp(',),
      'genrec_jax/config/__init__.py': ('  finalmlp,', "  'finalmlp',"),
      'genrec_jax/config/model_choice.py': ("'finalmlp': rankers.finalmlp",),
      'genrec_jax/config/sections.py': ("'finalmlp': models.FinalMLP",),
      'docs/ranking.md': ('| `finalmlp` |',),
      'tests/models/ranking/cases.py': ("'finalmlp': (",),
      'tests/models/ranking/statements.py': ('def finalmlp(',),
      'benchmarks/published_sizes.py': ("('FuxiCTR', 'FinalMLP', ",),
      'configs/frappe.py': ("'finalmlp': (",),
    },
  ),
  Walk(
    'a row optimizer, with its C++ twin',
    BUILT_IN,
    'LAMB',
    (9, 11),
    {
      'pallas_kernels/jagged_embedding/rules.py': (
        '| lamb        |',
        'def _lamb(',
        "'lamb': Optimizer(",
      ),
      'pallas_kernels/jagged_embedding/cpu_optimizers.h': (
        'Lamb(',
        '{"lamb", Lamb<false>}',
      ),
      'tests/kernels/row_update_oracle.py': ("if 'lamb' in rule.optimizer",),
      'docs/kernels.md': ('`row_lamb`, `lamb`',),
    },
  ),
  Walk(
    'a row optimizer',
    OUTSIDE,
    'SignSGD',
    (None, None),
    {'tests/own_parts.py': ('class SignSGD', "'sign_sgd': SignSGD()")},
  ),
  Walk(
    'a sharding scheme',
    BUILT_IN,
    'grid',
    (11, None),
    {
      'genrec_jax/embedding/scheme.py': (
        '| grid               |',
        "'grid': Scheme(",
      ),
      'docs/parallel.md': ('| `grid` | columns |',),
      'benchmarks/sharding_formulas.py': (
        "'grid': self.hosts",
        "'grid': pooled_on_hosts",
      ),
      'tests/embedding/sharded_cases.py': ("'grid': lambda p:",),
      'tests/conformance/tables_cases.py': ("'grid': Setting(",),
    },
  ),
  Walk(
    'a sharding scheme',
    OUTSIDE,
    'last_device',
    (None, None),
    {'tests/own_parts.py': ('def place_on_last(', "'last_device': Scheme(")},
  ),
  Walk(
    'a quantiser, for checkpoints and exchange',
    BUILT_IN,
    'int8; the methods of checkpoints',
    (None, 10),
    {
      'genrec_jax/numerics/even_levels.py': ('INT8 = NumberFormat(',),
      'genrec_jax/numerics/formats.py': ("'int8': even_levels.INT8",),
      'genrec_jax/parallel/codecs.py': (
        '| int8     |',
        "'fp8', 'int8', 'fbgemm_int8'",
      ),
      'genrec_jax/config/sections.py': (
        "'bfloat16', 'fp8', 'int8', or one of",
        "'symmetric', 'asymmetric', 'adaptive'",
      ),
      'genrec_jax/config/key_rules.py': ("'fp8', 'int8'",),
      'docs/number_formats.md': ('| `int8` |',),
      'docs/checkpoint_format.md': ('`adaptive`, `asymmetric`, `symmetric`',),
      'tests/numerics/formats_test.py': ("'fp8', 'int8'",),
      'tests/numerics/format_golden_test.py': ("('int8', False):",),
    },
  ),
  Walk(
    'a quantiser, for checkpoints and exchange',
    OUTSIDE,
    'power8',
    (None, None),
    {'tests/numerics/power_format.py': ('POWER8 = NumberFormat(',)},
  ),
  Walk(
    'a task',
    BUILT_IN,
    'ranking',
    (14, None),
    {
      'genrec_jax/tasks/ranking.py': ('class Ranking',),
      'genrec_jax/evaluators/ranking.py': ('class RankingEvaluator',),
      'genrec_jax/train/ranking_data.py': ('class RankingData',),
      'genrec_jax/serve/score.py': ('def write_scores(',),
      'genrec_jax/serve/scorer.py': ('class Scorer',),
      'genrec_jax/config/ranking.py': ('def ranking(',),
      'genrec_jax/config/__init__.py': (
        'import ranking, ranking_smoke',
        "  'ranking',",
      ),
      'genrec_jax/config/comparison.py': ("'ranking': ranking.ranking",),
      'genrec_jax/task_kinds.py': ("'ranking': TaskKind(",),
      'docs/ranking.md': ('# ',),
      'tests/conformance/kinds_test.py': ("'ranking': (",),
      'tests/conformance/task_cases.py': ("'ranking, lr':",),
    },
  ),
  Walk(
    'a task',
    OUTSIDE,
    'minutes watched',
    (None, None),
    {
      'tests/third_task/task.py': ('class Minutes',),
      'tests/third_task/parts.py': (
        'class Evaluator',
        'class MinutesData',
        'def predict(',
        'KIND = TaskKind(',
      ),
    },
  ),
  Walk(
    'a server: loads weights and scores',
    OUTSIDE,
    'predictions of minutes',
    (1, 1),
    {'tests/third_task/parts.py': ('load_weights(workdir, task,',)},
  ),
)
