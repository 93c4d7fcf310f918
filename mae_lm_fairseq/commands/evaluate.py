"""Measure how well masked language models predict a text.

Prints a table of all models. Loss and accuracy are those at masked positions, which depend on the seed and the tokens
alone, so that models with the same tokenizer predict the same tokens. The unigram entropy is the lowest loss with the
same prediction at every position. Pseudo-perplexity per token masks every token on its own. Pseudo-perplexity per word
masks every word (what white space separates) with all of its subwords, and can be compared between models with
different tokenizers.

Example:
    mae-lm evaluate checkpoint_last.pt --data-bin data-bin --text valid.txt --out evaluation.json
"""

from mae_lm_fairseq.measures.options import EvaluateOptions as Options
from mae_lm_fairseq.utils.files import write_json


def main(options: Options) -> None:
    """Run the command."""
    from mae_lm_fairseq.measures.evaluation import measure_models, table

    results = measure_models(options)
    print(table(results["models"], options.mask_prob))
    if options.out:
        write_json(options.out, results)
