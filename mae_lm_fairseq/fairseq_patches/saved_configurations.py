"""Check of the configuration that a checkpoint holds, before fairseq builds a task, a model or anything else from it.

fairseq evaluates strings of a configuration as Python: ``wer_args`` of the criterion ``ctc``, ``left_pad_source`` of
the task ``multilingual_translation``, ``adam_betas`` and others. Reading a file as data does not help against them.
"""

import ast
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, ListConfig, OmegaConf

from mae_lm_fairseq.utils.errors import RefusedFile, UserError

ALLOWED: dict[str, frozenset[str]] = {
    "task": frozenset({"masked_lm", "multilingual_masked_lm", "sentence_prediction", "sentence_ranking"}),
    "model": frozenset(
        {"roberta", "roberta_prenorm", "roberta_base", "roberta_large", "xlm", "camembert", "gottbert", "xlmr"}
    ),
    "criterion": frozenset({"masked_lm", "sentence_prediction", "sentence_ranking", "cross_entropy"}),
    "optimizer": frozenset(
        {"adadelta", "adafactor", "adagrad", "adam", "adamax", "composite", "cpu_adam", "lamb", "nag", "sgd"}
    ),
    "lr_scheduler": frozenset(
        {"cosine", "fixed", "inverse_sqrt", "manual", "pass_through", "polynomial_decay", "reduce_lr_on_plateau"}
        | {"step", "tri_stage", "triangular"}
    ),
    "tokenizer": frozenset({"moses", "nltk", "space"}),
    "bpe": frozenset({"bert", "bytes", "byte_bpe", "characters", "fastbpe", "gpt2", "hf_byte_bpe", "sentencepiece"})
    | {"subword_nmt"},
    "scoring": frozenset({"bleu", "chrf", "sacrebleu", "wer"}),
}
"""fairseq's components that a checkpoint may name: those of RoBERTa's family, and what any training may have used."""

EVALUATED = frozenset(
    {
        *("adafactor_eps", "adam_betas", "adamax_betas", "lamb_betas"),
        *("adaptive_input_cutoff", "adaptive_softmax_cutoff", "character_filters", "xformers_att_config"),
        *("conv_aggregator_layers", "conv_feature_layers", "feature_encoder_spec", "wer_args"),
        *("decoder_attention", "decoder_layers", "downsample", "encoder_attention", "encoder_layers"),
        *("gated_attention", "pretrained", "project_input", "self_attention"),
        *("left_pad_source", "left_pad_target", "pipeline_balance", "pipeline_decoder_balance"),
        *("pipeline_decoder_devices", "pipeline_devices", "pipeline_encoder_balance", "pipeline_encoder_devices"),
    }
)
"""Names of the fields that fairseq evaluates, alone or at the end of a longer name, as ``encoder_xformers_att_config``.

Few of them belong to a component of :data:`ALLOWED`, but a component of the user may derive from another one.
"""

_ENDINGS = tuple(f"_{name}" for name in EVALUATED)
_WORD = re.compile(r"[\w-]*")
"""A value that is a name, as of ``--decoder-attention``. Evaluating it calls nothing."""

ACTING = ("user_dir", "save_predictions")
"""Options of components that may be built, by which fairseq loads code or writes a file as soon as it builds them."""

MOST_VALUES = 100_000
"""Maximum number of values in a configuration; fairseq's have a few hundred."""

Key = tuple[str, ...]


def check_saved_configuration(state: Mapping[str, Any], path: str) -> None:
    """Check the configuration in the content of a checkpoint, in ``cfg`` or, of older versions of fairseq, ``args``.

    A component must be in :data:`ALLOWED`, or registered by a package other than fairseq: this one, or that of the
    command line's ``--user-dir``. A name that nothing has registered passes, because nothing can be built from it.

    Raises:
        RefusedFile: if a component is another one of fairseq's, a field that fairseq evaluates is neither a literal
            nor a word, a value refers to a resolver, such as ``${oc.env:HOME}``, there are too many values, or the
            configuration is text. The message names the key.
        UserError: if ``args`` name a component that nothing has registered, which fairseq needs to convert them.
    """
    for part in ("args", "cfg"):
        if isinstance(state.get(part), str):  # OmegaConf would parse it as YAML, in which a line can grow to gigabytes
            raise RefusedFile(f"refused {path}: {part} is text, and no configuration")
        strings = list(_strings(path, part, state.get(part)))
        for key, value in strings:
            kind = _kind(key)
            if kind is not None:
                _check_component(path, key, value, kind)
        _check_only_model(path, state.get(part), part)
        for key, value in strings:
            _, _, reference = value.partition("${")
            if ":" in reference:
                raise _refusal(path, key, value, "refers to something outside of the file")
            if _is_evaluated(key[-1]):
                _check_evaluated(path, key, value)


def _is_evaluated(field: str) -> bool:
    return field in EVALUATED or field.endswith(_ENDINGS)


def forget_what_acts(state: Mapping[str, Any]) -> None:
    """Remove options that load code or write files when a component is built: they come from the command line alone.

    These are ``user_dir``, and ``save_predictions`` of fairseq's criterion ``sentence_ranking``, which empties the file
    of that name.
    """
    configuration = state.get("cfg")
    groups = [state.get("args")]
    if isinstance(configuration, Mapping | DictConfig):
        groups += configuration.values()
    for options in groups:
        for name in ACTING:
            if isinstance(options, Namespace) and hasattr(options, name):
                setattr(options, name, None)
            elif isinstance(options, dict | DictConfig) and name in options:
                options[name] = None


def _strings(path: str, part: str, configuration: Any) -> Iterator[tuple[Key, str]]:
    """Yield the strings in nested dictionaries, lists and namespaces, with the keys that lead to them."""
    waiting = [((part,), configuration)]
    visited = 0
    while waiting:
        key, value = waiting.pop()
        visited += 1
        if visited > MOST_VALUES:  # lists that a pickle refers to many times would fill the memory of OmegaConf
            raise RefusedFile(f"refused {path}: {part} has more than {MOST_VALUES:,} values, as no configuration has")
        if isinstance(value, DictConfig | ListConfig):
            value = OmegaConf.to_container(value, resolve=False)
        if isinstance(value, Namespace):
            value = vars(value)
        if isinstance(value, bytes | bytearray):  # Python evaluates them, too
            value = value.decode(errors="replace")
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, Mapping):
            for name, inner in value.items():
                waiting.append(((*key, str(name)), inner))
        elif isinstance(value, Sequence | Set):
            waiting += [(key, inner) for inner in value]


def _kind(key: Key) -> str | None:
    """Return the kind of component that the value of a key names; None if it names none.

    fairseq reads names from ``criterion``, ``criterion._name`` and, in a namespace, ``criterion.criterion``, and those
    of models also from ``arch``.
    """
    *_, last = key
    if last in ("arch", "model"):
        return "model"
    if last == "task" or last in REGISTRIES:
        return last
    if last == "_name":
        for name in reversed(key):
            if name in ("task", "model") or name in REGISTRIES:
                return name
    return None


def _registry(kind: str) -> Mapping[str, type]:
    if kind == "task":
        return TASK_REGISTRY
    if kind == "model":
        return {**MODEL_REGISTRY, **ARCH_MODEL_REGISTRY}
    return REGISTRIES[kind]["registry"]


def _check_component(path: str, key: Key, name: str, kind: str) -> None:
    if "${" in name:
        raise _refusal(path, key, name, "does not name a component, but refers to another value")
    component = _registry(kind).get(name)
    if component is None:
        in_namespaces = {("args", field) for field in ("task", "arch", *REGISTRIES)}
        if key in in_namespaces:
            raise UserError(f"{path}: {'.'.join(key)} = {name!r} is not registered; name its package with --user-dir")
        return
    package, _, _ = component.__module__.partition(".")
    if package == "fairseq" and name not in ALLOWED.get(kind, ()):
        raise _refusal(path, key, name, f"is not among the {kind} components of fairseq that this package builds")


def _check_only_model(path: str, configuration: Any, part: str) -> None:
    """Check the key of a model without a name: fairseq takes the only key of its configuration for it."""
    model = configuration.get("model") if isinstance(configuration, Mapping | DictConfig) else None
    if isinstance(model, Mapping | DictConfig) and len(model) == 1:
        [name] = model
        _check_component(path, (part, "model"), str(name), "model")


def _check_evaluated(path: str, key: Key, value: str) -> None:
    if _WORD.fullmatch(value):
        return
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise _refusal(path, key, value, "would be evaluated as Python code, and is no literal") from None


def _refusal(path: str, key: Key, value: str, problem: str) -> RefusedFile:
    name = ".".join(key)
    return RefusedFile(
        f"refused {path}: {name} = {value!r:.80} {problem}; code comes from the command line's --user-dir alone"
    )
