"""``mae-lm pretrain``: train an architecture with its recipe on any machine."""

from mae_lm_fairseq import register
from mae_lm_fairseq.training.command import arguments, as_options
from mae_lm_fairseq.training.settings import recipe, settings
from mae_lm_fairseq.utils.errors import UserError

# fairseq and torch are imported inside functions: it takes seconds, in which Ctrl-C must not print a traceback.


def parse_configuration(words: list[str]):
    """Return the configuration (a DictConfig) that fairseq-train builds from its arguments."""
    register()
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))


def build_arguments(architecture: str, data: str, save_dir: str, extra: list[str]) -> list[str]:
    """Return all arguments of fairseq-train.

    They are the recipe's, this machine's, and the user's, which come last and take precedence.

    Raises:
        UserError: if the architecture does not exist, or the sequences of an update cannot be divided by the processes
            or are unknown.
    """
    from mae_lm_fairseq.training.machine import precision, processes, split_global_batch

    chosen = settings(architecture)
    chosen["checkpoint"]["save_dir"] = save_dir
    # 0 marks options that the user did not set.
    unset = ["--batch-size", "0", "--update-freq", "0"]
    asked = parse_configuration(arguments(data, as_options(chosen), [*unset, *extra]))
    chosen["common"] |= precision(asked)
    if asked.optimization.update_freq == [0]:
        if asked.dataset.max_tokens:
            raise UserError(
                f"--max-tokens {asked.dataset.max_tokens}: --update-freq cannot be computed, as the number of "
                "sequences in a batch varies; add --update-freq"
            )
        number, _ = processes(parse_configuration(arguments(data, as_options(chosen), extra)))
        sequences = recipe(architecture)["sequences"].value
        batch_size = asked.dataset.batch_size or chosen["dataset"]["batch_size"]
        batch_size, accumulated = split_global_batch(
            sequences, number, batch_size, smaller=not asked.dataset.batch_size
        )
        chosen["dataset"]["batch_size"] = batch_size
        chosen["optimization"]["update_freq"] = [accumulated]
    return arguments(data, as_options(chosen), extra)


def arithmetic(
    batch_size: int,
    accumulated: int,
    number_of_processes: int,
    tokens: int,
    updates: int,
    max_tokens: int | None = None,
) -> str:
    """Describe the amount of training data in one sentence."""
    sequences = batch_size * accumulated * number_of_processes
    processes = "1 process" if number_of_processes == 1 else f"{number_of_processes} processes"
    if max_tokens:
        return (
            f"at most {max_tokens:,} tokens and {batch_size} sequences per batch x {accumulated} accumulated "
            f"x {processes}; {updates:,} updates"
        )
    return (
        f"{sequences:,} sequences ({batch_size} per batch x {accumulated} accumulated x {processes}) "
        f"x {tokens} tokens = {sequences * tokens:,} tokens per update at most; "
        f"{updates:,} updates = {sequences * tokens * updates:,} tokens"
    )
