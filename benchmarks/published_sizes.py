"""Have the ranking models the parameters and operations that papers print?

  python -m benchmarks.published_sizes

Nothing is trained: parameters are counted by their shapes, multiply-accumulates
in the traced forward pass (flops.py). A row is a cell of table 3 of the paper
on Wukong, a published run of FuxiCTR, or a row of table 5 of that paper, the
scaling study. Papers count six operations for each multiply-accumulate, of the
dense layers or of all products; both are printed, and how far each is off.

Table 5 is of 720 features with vectors of 160 and of two tasks. Its parameters
are those of the study with 627 billion in tables, so what is compared is how
many more than in the first row there are. The paper does not print the sizes of
the MLP that makes Y nor of the MLP on top: beside the preset, a row counts it
with a static Y, and one with a static Y and without an MLP on top.
"""

from benchmarks import cli, flops
from genrec_jax import config as config_lib
from genrec_jax.config import rankers
from genrec_jax.features import FeatureSpec
from genrec_jax.models import RANKERS

COLUMNS = (
  'case', 'parameters', 'published_parameters', 'gflop', 'gflop_total',
  'published_gflop', 'layers_met', 'total_met', 'parameters_met',
)  # fmt: skip


def name_tables(rows) -> tuple[FeatureSpec, ...]:
  """Categorical features with tables of so many rows."""
  return tuple(FeatureSpec(f'c{i}', rows=n) for i, n in enumerate(rows))


# Rows with padding and unseen values; older logs had one fewer in each table.
FRAPPE_ROWS = dict(
  user=956,
  item=4084,
  daytime=9,
  weekday=9,
  isweekend=4,
  homework=5,
  cost=4,
  weather=11,
  country=82,
  city=235,
)
FRAPPE = tuple(FeatureSpec(n, rows=r) for n, r in FRAPPE_ROWS.items())
OLD_FRAPPE = tuple(FeatureSpec(n, rows=r - 1) for n, r in FRAPPE_ROWS.items())
MOVIELENS = name_tables((16_977, 23_606, 49_659))
TERABYTE_ROWS = (
  40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956,
  405282, 10, 2209, 11938, 155, 4, 976, 14, 40000000, 40000000, 40000000,
  590152, 12973, 108, 36,
)  # fmt: skip
TERABYTE = name_tables(TERABYTE_ROWS) + tuple(
  FeatureSpec(f'i{i}', kind='numeric') for i in range(13)
)
SCALING = name_tables([1] * 720)
TASKS = 2  # of the scaling study

# (source, model, data) -> (published parameters, published MFLOP).
PUBLISHED = {
  ('table 3', 'DCN-V2', 'Frappe'): (7_251_073, 39.35),
  ('table 3', 'DCN-V2', 'MicroVideo'): (3_454_209, 11.84),
  ('table 3', 'DCN-V2', 'MovieLens'): (1_243_101, 2.02),
  ('table 3', 'DCN-V2', 'KuaiVideo'): (42_636_609, 9.10),
  ('table 3', 'DCN-V2', 'TaobaoAds'): (193_472_513, 166.19),
  ('table 3', 'DCN-V2', 'Criteo TB'): (26_179_364_097, 262.35),
  ('table 3', 'DLRM', 'Frappe'): (1_527_073, 4.99),
  ('table 3', 'DLRM', 'MicroVideo'): (2_853_761, 12.66),
  ('table 3', 'DLRM', 'MovieLens'): (1_238_421, 1.99),
  ('table 3', 'DLRM', 'KuaiVideo'): (41_446_513, 1.99),
  ('table 3', 'DLRM', 'TaobaoAds'): (42_192_033, 4.53),
  ('table 3', 'DLRM', 'Criteo TB'): (26_136_307_201, 4.62),
  ('table 3', 'FinalMLP', 'Frappe'): (3_115_954, 10.66),
  ('table 3', 'FinalMLP', 'MicroVideo'): (3_020_498, 9.25),
  ('table 3', 'FinalMLP', 'MovieLens'): (1_040_902, 0.81),
  ('table 3', 'FinalMLP', 'KuaiVideo'): (580_227_666, 12.17),
  ('table 3', 'FinalMLP', 'TaobaoAds'): (85_624_114, 16.39),
  ('table 3', 'FinalMLP', 'Criteo TB'): (26_149_500_924, 84.95),
  ('table 3', 'Wukong', 'Frappe'): (7_769_589, 44.09),
  ('table 3', 'Wukong', 'MicroVideo'): (2_219_409, 9.08),
  ('table 3', 'Wukong', 'MovieLens'): (17_734_369, 37.49),
  ('table 3', 'Wukong', 'KuaiVideo'): (44_671_649, 22.27),
  ('table 3', 'Wukong', 'TaobaoAds'): (175_724_173, 63.00),
  ('table 3', 'Wukong', 'Criteo TB'): (26_163_636_001, 173.73),
  ('FuxiCTR', 'DLRM', 'Frappe'): (417_891, None),
  ('FuxiCTR', 'DCN-V2', 'Frappe'): (458_391, None),
  ('FuxiCTR', 'FinalMLP', 'Frappe'): (253_392, None),
}
# The same -> (the model's section, features). Nobody has published the settings
# of the others, or the vocabularies of their data.
SETTINGS = {
  ('table 3', 'DLRM', 'Frappe'): (
    config_lib.dlrm(dim=128, interaction='cat'),
    FRAPPE,
  ),
  ('table 3', 'DCN-V2', 'Frappe'): (
    config_lib.dcn(dim=128, structure='cross', cross=4),
    FRAPPE,
  ),
  ('table 3', 'DLRM', 'MovieLens'): (
    config_lib.dlrm(interaction='cat'),
    MOVIELENS,
  ),
  ('table 3', 'DCN-V2', 'MovieLens'): (config_lib.dcn(cross=5), MOVIELENS),
  ('table 3', 'FinalMLP', 'MovieLens'): (
    config_lib.finalmlp(hidden2=(800,), selection_hidden=(800,), heads=10),
    MOVIELENS,
  ),
  ('table 3', 'DLRM', 'Criteo TB'): (
    config_lib.dlrm(
      dim=128, bottom=(512, 256), top=(512, 512), batch_norm=False
    ),
    TERABYTE,
  ),
  ('table 3', 'DCN-V2', 'Criteo TB'): (
    config_lib.dcn(
      dim=128,
      structure='stacked',
      cross=2,
      bottom=(512, 256),
      hidden=(2048,) * 4,
      batch_norm=False,
    ),
    TERABYTE,
  ),
  ('FuxiCTR', 'DLRM', 'Frappe'): (
    config_lib.dlrm(interaction='cat'),
    OLD_FRAPPE,
  ),
  ('FuxiCTR', 'DCN-V2', 'Frappe'): (config_lib.dcn(cross=4), OLD_FRAPPE),
  ('FuxiCTR', 'FinalMLP', 'Frappe'): (
    config_lib.finalmlp(context1=('user',), context2=('item',)),
    FRAPPE,
  ),
}
# Preset -> (published GFLOP, billions of parameters); table 5 as far as both
# are known.
STUDY = {
  'wukong_l2_n8': (0.53, 627.74),
  'wukong_l4_n32': (1.25, 627.82),
  'wukong_l8_n32': (2.12, 627.95),
  'wukong_l8_n48': (5.6, 628.46),
  'wukong_l8_n96': (22.23, 630.96),
  'wukong_l8_n96_wide': (61.0, 636.99),
  'wukong_l8_n192': (108.0, 644.0),
  'dlrm_2x512': (1.37, None),
  'dlrm_4x2048': (3.85, None),
  'dlrm_4x4096': (7.29, None),
  'dlrm_4x8192': (14.61, None),
  'dlrm_4x16384': (31.0, None),
  'dlrm_4x32768': (71.23, None),
  'dcn_4x2048': (3.0, None),
  'dcn_4x4096': (4.67, None),
  'dcn_4x16384': (17.85, None),
  'dcn_4x32768': (43.88, None),
}
# What a row says of Y -> fields in place of the preset's.
VARIANTS = {
  'attentive': {},
  'static': {'attentive': False},
  'static, no top MLP': {'attentive': False, 'top': ()},
}


def main(argv: list[str] | None = None) -> None:
  args = cli.parser('published_sizes', __doc__).parse_args(argv)
  study = dict(list(STUDY.items())[:2]) if args.smoke else STUDY
  rows = [count_published(*key) for key in PUBLISHED]
  rows += count_study(study)
  cli.finish(args, 'published_sizes', rows, COLUMNS, merge=False)


def build(section) -> tuple:
  """(class of the model, its `Config`) of a section."""
  fields = section.to_dict()
  model = RANKERS[fields.pop('name')]
  return model, model.Config(**fields)


def judge(measured: float, published: float) -> str:
  """How near: 'equal', '3 %', '10 %' or 'not met'.

  >>> judge(417891, 417891), judge(102, 100), judge(0.36, 0.53)
  ('equal', '3 %', 'not met')
  """
  off = abs(measured / published - 1)
  for bound, words in ((0.0, 'equal'), (0.03, '3 %'), (0.1, '10 %')):
    if off <= bound:
      return words
  return 'not met'


def count_published(source: str, model: str, data: str) -> dict:
  """A row of `PUBLISHED`; without figures of ours where nothing says how."""
  parameters, mflop = PUBLISHED[source, model, data]
  row = {
    'kind': 'published',
    'case': f'{source}, {model}, {data}',
    'source': source,
    'model': model,
    'data': data,
    'published_parameters': parameters,
  }
  if mflop:
    row['published_mflop'] = mflop
  if (source, model, data) not in SETTINGS:
    return row | {'parameters_met': 'settings unknown'}
  section, features = SETTINGS[source, model, data]
  counted = flops.count_parameters(*build(section), features)
  macs = flops.count_macs(*build(section), features)
  row |= {
    'parameters': counted,
    'more_parameters': counted - parameters,
    'parameters_met': judge(counted, parameters),
    'mflop': macs.mflop,
    'mflop_total': 6 * macs.total / 1e6,
  }
  if mflop:
    row['layers_met'] = judge(round(row['mflop'], 2), mflop)
    row['total_met'] = judge(round(row['mflop_total'], 2), mflop)
  return row


def count_study(study: dict) -> list[dict]:
  """The rows of table 5, those of Wukong in three variants."""
  rows, first = [], {}
  for preset, (gflop, billions) in study.items():
    wukong = preset.startswith('wukong')
    for y in VARIANTS if wukong else ('',):
      section = rankers.scaled_wukong(preset, **VARIANTS.get(y, {}))
      model = build(section)
      macs = flops.count_macs(*model, SCALING, TASKS)
      parameters = flops.count_parameters(*model, SCALING, TASKS)
      layers, total = macs.mflop / 1e3, 6 * macs.total / 1e9
      row = {
        'kind': 'study',
        'case': f'table 5, {preset}, {y}'.rstrip(', '),
        'preset': preset,
        'y': y or '–',
        'gflop': layers,
        'gflop_total': total,
        'published_gflop': gflop,
        'layers_off': layers / gflop - 1,
        'total_off': total / gflop - 1,
        'layers_met': judge(layers, gflop),
        'total_met': judge(total, gflop),
        'parameters': parameters - sum(f.rows for f in SCALING) * 160,
      }
      if wukong:
        base, published = first.setdefault(y, (row['parameters'], billions))
        if preset != next(iter(study)):
          row['more_billions'] = (row['parameters'] - base) / 1e9
          row['published_more_billions'] = billions - published
          row['parameters_met'] = judge(
            row['more_billions'], row['published_more_billions']
          )
      rows.append(row)
  return rows


if __name__ == '__main__':
  main()
