"""Registries: components by name."""

from typing import Any

from mae_lm_fairseq.utils.errors import UserError


def register_name(registry: dict[str, Any], name: str, component: Any) -> None:
    """Add a component to a registry; one of a module that is imported again takes the place of itself.

    Raises:
        UserError: if another one has the name.
    """
    known = registry.setdefault(name, component)
    if known is not component and _origin(known) != _origin(component):
        raise UserError(f"{name} is the name of {_origin(known)}; choose another name")
    registry[name] = component


def _origin(component: Any) -> str:
    """Return module and name of a class or function; an object has no name of its own."""
    if hasattr(component, "__qualname__"):
        return f"{component.__module__}.{component.__qualname__}"
    return repr(component)
