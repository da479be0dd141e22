"""The library behind `genrec_jax.fit` and `genrec_jax.load`.

    data of the user --columns--> arrays --events or examples--> prepared data
    prepared data --fitting--> the loop of the command line --runs--> a run

Everything runs on the same readers, loop and predictors as the command line.
"""
