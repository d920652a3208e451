"""Settings of workers and this machine: flags, variables, gradeloop.toml, tables of models and prices."""
