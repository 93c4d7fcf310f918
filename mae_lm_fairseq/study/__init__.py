"""Comparison of models over seeds: a plan (TOML) is trained, measured, tested and reported.

The files in the order of the work: ``plan`` is read and checked (``checks``), and recorded (``history``). ``speed``
measures the models if they are to be trained for equal seconds. ``rates`` says which trainings the plan needs, ``runs``
which runs they take, and ``run_files`` what each run leaves. ``engine`` runs them, and collects ``results_file``.
``results`` selects from it what ``contrasts`` (of ``endpoints``, with ``looks``) and ``tables`` compute, and ``report``
writes. ``finetuning_measures`` are measures that train. ``quickstart`` and ``adapt`` (with ``adapt_options``,
``adapt_plan`` and ``adapt_report``) are studies with a plan of their own.
"""
