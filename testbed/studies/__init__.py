"""Studies: many independent runs over a parameter space, in parallel on an engine. A study can be continued after an
interruption.

    study = load("loss.toml")
    outcomes = run_study(study, new_folder(Path("results"), study), ProcessEngine(4))

The file of a study has the parameters that all runs share, and those that vary. Each combination is a *point*: one run, with
its rows.
"""
