"""Comparison of models over seeds: a plan (TOML) is trained, measured, tested and reported.

The files in the order of the work: ``plan`` is read and checked (``checks``), and recorded (``history``). ``rates``
says which trainings it needs, ``runs`` which runs they take, and ``run_files`` what each run leaves. ``engine`` runs
them, and collects ``results_file``. ``results`` selects from it what ``contrasts`` (of ``endpoints``, with ``looks``)
and ``tables`` compute, and ``report`` writes. ``adapt`` and ``quickstart`` are studies with a plan of their own.
"""
