"""The fine-tuning driver: from a model to the results of any task that has an adapter."""

from functools import partial

from mae_lm_fairseq.finetuning.adapter import MODEL, Adapter
from mae_lm_fairseq.finetuning.options import (
    ClassificationOptions,
    FinetuningOptions,
    GlueOptions,
    SquadOptions,
    TaggingOptions,
)
from mae_lm_fairseq.finetuning.results import counts_in_words, seed_values
from mae_lm_fairseq.finetuning.sentences.adapter import ClassificationAdapter, GlueAdapter
from mae_lm_fairseq.finetuning.squad.adapter import SquadAdapter
from mae_lm_fairseq.finetuning.start import EMA, find_start
from mae_lm_fairseq.finetuning.sweep import Sweep
from mae_lm_fairseq.finetuning.tagging.adapter import TaggingAdapter
from mae_lm_fairseq.finetuning.tagging.metrics import SEPARATOR
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer
from mae_lm_fairseq.training.command import check_further_options
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.utils.directories import REPORT, RESULTS, replacing_files, retract
from mae_lm_fairseq.utils.files import write_record, write_text
from mae_lm_fairseq.utils.locks import directory_lock
from mae_lm_fairseq.utils.signals import signals_as_errors

ADAPTERS: dict[type[FinetuningOptions], type[Adapter]] = {
    GlueOptions: GlueAdapter,
    ClassificationOptions: ClassificationAdapter,
    SquadOptions: SquadAdapter,
    TaggingOptions: TaggingAdapter,
}
_OWNED = (EMA, MODEL, "runs", RESULTS, REPORT)
"""Names in the output directory that every fine-tuning uses or replaces."""


def main(options: FinetuningOptions) -> None:
    """Run a verb of fine-tuning."""
    with signals_as_errors():
        metrics = finetune(options)["metrics"]
    for name, summary in metrics.items():
        if SEPARATOR not in name:  # of entities, those over all types
            print(f"{name}: median {summary['median']:.1f}, seeds {seed_values(summary)}")
    print(f"report: {options.out / REPORT}")


def finetune(options: FinetuningOptions) -> dict:
    """Fine-tune, or resume an unfinished sweep, and return the content of ``results.json``.

    It has ``task`` and ``data`` (counts by split), and what else the adapter says of its files; of the sweep ``start``,
    ``settings``, ``options``, ``learning_rate``, ``metrics`` (by name, those of this rate), ``grid`` (the same by rate)
    and ``versions``; and of the predictions what the adapter says, such as by which run they are.

    Raises:
        UserError: if options, data or model are invalid; existing results are kept.
    """
    check_further_options(ADAPTERS[type(options)].kind.task, options.extra)
    with directory_lock(options.out):
        adapter = ADAPTERS[type(options)](options)
        name = type(options).__name__
        command = f"mae-lm finetune {name.removesuffix('Options').lower()}"
        owned = (*_OWNED, *adapter.outputs)
        with Products(options.out, command, owned, former_command=f"fine-tuning with {name}") as products:
            start = find_start(options, adapter.heads)
            tokenizer = open_tokenizer(options.tokenizer, options.model, start.about.dictionary_sha256)
            setup = adapter.prepare(start, tokenizer, products)
            for split, counts in setup.content["data"].items():
                print(f"{split}: {counts_in_words(counts)}")

            sweep = Sweep(options, start, tokenizer, setup)
            selection = sweep.run()

            made_from = {"run": selection.run.result.parent.name, "metrics": selection.metrics}
            if not products.has(MODEL, made_from):  # results and report would be those of another model
                retract(options.out, RESULTS, REPORT)
            products.make(MODEL, made_from, partial(sweep.write_model, selection))

            with replacing_files(options.out, RESULTS, stale=[*adapter.outputs]) as directory:
                predicted = adapter.write_predictions(selection.run, directory)
                content = {**setup.content, **sweep.content(selection), **predicted}
                write_text(directory / REPORT, adapter.report(content))
                write_record(directory / RESULTS, content)
            return content
