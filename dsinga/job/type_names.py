"""Lets any registered component be a job's ``type`` by name, in place of SINGA's fixed enumerations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from dsinga.base.registry import registered_numbers, version


class _Names(type):
    """Makes the names of components members of a class, like an Enum's."""

    kind: str
    user: str
    user_number: int
    _members: dict[str, Any]
    _version: int

    @property
    def __members__(cls) -> Mapping[str, Any]:
        """All names of a kind of components, ordered by number."""
        if cls._version != version():
            numbers = registered_numbers(cls.kind)
            by_number: dict[int, str] = {}
            for name, number in numbers.items():
                by_number.setdefault(number, name)
            names = {name: by_number[numbers[name]] for name in sorted(numbers, key=lambda name: numbers[name])}
            cls._members = {
                name: cls.member(member, numbers) for name, member in [*names.items(), (cls.user, cls.user)]
            }
            cls._version = version()
        return cls._members

    def member(cls, name: str, numbers: Mapping[str, int]) -> Any:
        """Return the object for a name, created at the first use."""
        if name not in cls._members:
            made: Any = str.__new__(cls, name)  # type: ignore[arg-type]
            made.value = numbers.get(name, cls.user_number)
            cls._members[name] = made
        return cls._members[name]

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name == cls.user:  # without the components, which need the schema when they are loaded
            return cls._members[name]
        try:
            return cls.__members__[name]
        except KeyError:
            raise AttributeError(f"{cls.__name__} has no member {name!r}") from None

    def __getitem__(cls, name: str) -> Any:
        return cls.__members__[name]

    def __iter__(cls) -> Iterator[Any]:
        return iter(dict.fromkeys(cls.__members__.values()))

    def __contains__(cls, name: object) -> bool:
        return name in cls.__members__


class TypeName(str, metaclass=_Names):
    """The name of a component in a job; ``value`` is SINGA's number.

    A subclass enumerates a kind: ``LayerType.kReLU`` is a layer's name. ``user`` stands for user-defined classes.
    """

    kind: ClassVar[str]
    user: ClassVar[str]
    user_number: ClassVar[int]
    value: int
    _members: ClassVar[dict[str, Any]]
    _version: ClassVar[int]

    def __init_subclass__(cls, kind: str, user: str, number: int) -> None:
        cls.kind, cls.user, cls.user_number = kind, user, number
        cls._members, cls._version = {}, -1
        cls.member(user, {})

    @property
    def name(self) -> str:
        """The component's name."""
        return str(self)

    @property
    def is_user(self) -> bool:
        """Whether the name stands for a user's class, which another field names."""
        return self is type(self)._members[type(self).user]

    def __reduce__(self) -> tuple[Any, ...]:
        return _find, (type(self), str(self))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self


def _find(cls: type[TypeName], name: str) -> TypeName:
    """Return the object for a name, also of a component that this process does not know."""
    return cls.__members__.get(name) or cls.member(name, {})
