"""Measure how well masked language models predict a text.

Prints a table of all models. Loss and accuracy are those at masked positions, which depend on the seed and the tokens
alone, so that models with the same tokenizer predict the same tokens. The unigram entropy is the lowest loss with the
same prediction at every position. Pseudo-perplexity per token masks every token on its own. Pseudo-perplexity per word
masks every word (what white space separates) with all of its subwords, and can be compared between models with
different tokenizers.

Example:
    mae-lm evaluate checkpoint_last.pt --data-bin data-bin --text valid.txt --json evaluation.json
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.measures.reader_options import add_models
from mae_lm_fairseq.utils.arguments import output_file, positive
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.logging import configure_logging


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_models(parser, "a Hugging Face masked language model")
    parser.add_argument("--text", required=True, type=Path, metavar="FILE", help="UTF-8 text, plain or compressed")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the numbers here")
    options = {
        "tokens": (positive, 50_000, "tokens of the text to use for loss and accuracy"),
        "pseudo-tokens": (positive, 5_000, "tokens to use for pseudo-perplexity, which predicts each of them twice"),
        "tokens-per-sample": (positive, 128, "maximum sequence length"),
        "mask-prob": (float, 0.15, "fraction of the tokens to mask for loss and accuracy"),
        "seed": (positive, 1, "seed of the masked positions"),
    }
    for name, (kind, default, text) in options.items():
        text = f"{text} (default: %(default)s)"
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=text)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    arguments = parser().parse_args(argv)
    configure_logging()
    from mae_lm_fairseq.measures.evaluation import measure_models, table

    results = measure_models(arguments)
    print(table(results["models"], arguments.mask_prob))
    if arguments.json:
        write_json(arguments.json, results)
