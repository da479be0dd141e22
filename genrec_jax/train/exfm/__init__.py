"""ExFM as one command: a teacher, the annotation service, many students.

`python -m genrec_jax.train.exfm WORKDIR` starts them as processes, stops and
resumes them, and ends with one page; see __main__.py and docs/exfm.md.
"""
