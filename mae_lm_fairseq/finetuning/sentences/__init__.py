"""Tasks of sentences or pairs of sentences.

The files in the order of the work: ``tasks`` says what a task is, and has GLUE's. ``task_files`` is the interface of
its files: ``glue_files`` or the user's ``own_files``, read as ``rows``. ``encoding`` makes tokens of them, which
``data_bin`` writes for fairseq. ``evaluation`` computes the ``metrics`` of a checkpoint on the data-bin, ``prediction``
writes what a fine-tuned model predicts for a file. ``adapter`` joins them for the driver.
"""
