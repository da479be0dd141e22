"""What a GPU takes for the kernels, on a machine that is lent for minutes.

  python -m benchmarks.gpu.smoke --out DIR        are they right there?
  python -m benchmarks.gpu.kernels --out DIR      how fast is each?
  python -m benchmarks.gpu.tune --out DIR         which block sizes are fastest?
  python -m benchmarks.gpu.peers --out DIR        what do torch and Meta take?
  python -m benchmarks.gpu.embedding --out DIR    and the embedding?
  python -m benchmarks.gpu.rows DIR --commit ID   files of benchmarks/results

Each works off its cases in child processes and appends a row to
DIR/<name>.jsonl as soon as it knows it: what fails, crashes or hangs costs its
own row. They need of the packages `pallas_kernels` alone. `--rehearse` runs
tiny cases on a CPU.
"""
