"""The kinds of tasks there are; `main` hands this table down.

A kind from outside the package is one more entry of such a table, see
`contracts.TaskKind` and docs/extending.md.
"""

from genrec_jax import config as config_lib
from genrec_jax.contracts import Panel, TaskKind
from genrec_jax.report import panels, request_panel, stream_panel
from genrec_jax.serve import predict, score, score_requests
from genrec_jax.train import ranking_data as ranking
from genrec_jax.train import request_data as requests
from genrec_jax.train import retrieval_data as retrieval

TASK_KINDS = {
  'retrieval': TaskKind(
    data=retrieval.RetrievalData,
    predict=predict.write_predictions,
    defaults=config_lib.retrieval,
    panels=(Panel('users', panels.explain_users),),
  ),
  'ranking': TaskKind(
    data=ranking.RankingData,
    predict=score.write_scores,
    defaults=config_lib.ranking,
    panels=(Panel('ranking', panels.measure_details),),
  ),
  'request_ranking': TaskKind(
    data=requests.RequestData,
    predict=score_requests.write_request_scores,
    defaults=config_lib.request_ranking,
    panels=(
      Panel(
        'ranking', stream_panel.measure_requests, stream_panel.draw_requests
      ),
      Panel(
        'requests', request_panel.explain_requests, request_panel.draw_explained
      ),
    ),
  ),
}
