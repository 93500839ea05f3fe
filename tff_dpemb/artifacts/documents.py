"""Documents: typed JSON that others verify, on one base.

Certificates, manifests and reports are frozen pydantic models. `schema` names
their form; their digest is that of their canonical JSON (RFC 8785), so two
programs that hold the same facts compute the same digest, whatever the order
of keys or the spelling of numbers in the file.

A document of another form is refused by name, never guessed at.
"""

import hashlib
import json
import os
import pathlib
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import pydantic
import rfc8785

from tff_dpemb.artifacts import storage

Sha256 = typing.Annotated[str, pydantic.Field(pattern='^[0-9a-f]{64}$')]
# Of a fact that need not be known: '' where it is not.
MaybeSha256 = typing.Annotated[str, pydantic.Field(pattern='^([0-9a-f]{64})?$')]
Count = typing.Annotated[int, pydantic.Field(ge=0, le=2**53 - 1)]
PositiveCount = typing.Annotated[int, pydantic.Field(ge=1, le=2**53 - 1)]


class DocumentError(storage.ArtifactError):
  """A document of another form, or one that breaks a rule of its form.

  Attributes:
    problems: What is wrong, one sentence each.
  """

  def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
    super().__init__(message)
    self.problems = tuple(problems) or (message,)


class Value(pydantic.BaseModel):
  """A part of a document: frozen, no unknown keys, no coercion, no NaN."""

  model_config = pydantic.ConfigDict(
    frozen=True,
    extra='forbid',
    strict=True,
    allow_inf_nan=False,
    validate_by_name=True,
    validate_by_alias=True,
    serialize_by_alias=True,
  )

  def to_json(self) -> dict[str, Any]:
    """Returns the value as a JSON object."""
    return self.model_dump(mode='json')

  @classmethod
  def from_json(cls, content: Any, *, name: str = '') -> Self:
    """Returns the value of a JSON object.

    Args:
      content: Of `json.loads` or `to_json`.
      name: What to call it in errors.

    Raises:
      DocumentError: It breaks a rule; `problems` names each field, its rule
        and its value.
    """
    name = name or cls.__name__
    try:
      # Strict JSON: a list is a sequence there, but 1 is no flag.
      return cls.model_validate_json(canonical_json(content))
    except pydantic.ValidationError as error:
      problems = [_sentence(name, dict(item)) for item in error.errors()]
      raise DocumentError(' '.join(problems), problems) from error


def schema(name: str) -> Any:
  """Returns the field of a document's `schema`, for a `Literal` of `name`."""
  return pydantic.Field(default=name, alias='schema')


class Document(Value):
  """A JSON file that says of which form it is.

  A subclass declares `schema_name: Literal[NAME] = documents.schema(NAME)`,
  NAME being `dpemb.<kind>/<version>`, and how it is made again, for errors.
  """

  remedy: ClassVar[str] = 'make it again with this release'

  schema_name: str = pydantic.Field(alias='schema')

  @classmethod
  def schema_of_class(cls) -> str:
    """Returns the name of the form, for example `dpemb.certificate/4`."""
    return cls.model_fields['schema_name'].default

  @property
  def digest(self) -> str:
    """SHA-256 (hex) of the canonical JSON of the whole document."""
    return digest_of(self.to_json())

  @classmethod
  def from_json(cls, content: Any, *, name: str = '') -> Self:
    """Returns the document of a JSON object; errors as `Value.from_json`.

    Raises:
      DocumentError: It is of another form, or breaks a rule of this one.
    """
    name = name or cls.__name__
    wanted = cls.schema_of_class()
    if not isinstance(content, Mapping):
      raise DocumentError(
        f'{name} must hold a JSON object of schema {wanted!r}; {cls.remedy}.'
      )
    found = content.get('schema')
    if found != wanted:
      raise DocumentError(
        f'{name} must have schema {wanted!r}, got {_short(found)};'
        f' {cls.remedy}.'
      )
    return super().from_json(content, name=name)

  @classmethod
  def read(cls, path: str | os.PathLike[str]) -> Self:
    """Returns the document in a file.

    Raises:
      ArtifactError: The file is missing or is not JSON.
      DocumentError: It is of another form, or breaks a rule of this one.
    """
    return cls.from_json(storage.read_json(path), name=repr(os.fspath(path)))

  def write(
    self, path: str | os.PathLike[str], *, is_private: bool = False
  ) -> None:
    """Writes the document as indented JSON, whole or not at all."""
    storage.atomic_write_bytes(path, self.to_bytes(), is_private=is_private)

  def to_bytes(self) -> bytes:
    """Returns what `write` writes."""
    return (
      json.dumps(self.to_json(), indent=2, allow_nan=False) + '\n'
    ).encode()

  @classmethod
  def json_schema(cls) -> dict[str, Any]:
    """Returns the published form: JSON Schema (draft 2020-12)."""
    return {
      '$schema': 'https://json-schema.org/draft/2020-12/schema',
      **cls.model_json_schema(by_alias=True, mode='serialization'),
    }


class Manifest(Document):
  """A document about the files beside it.

  Attributes:
    files: {relative path: SHA-256} of every file that it is about.
  """

  files: dict[str, Sha256]

  @property
  def files_digest(self) -> str:
    """Digest over the files' names and hashes."""
    return digest_of_files(self.files)

  def file_problems(self, directory: str | os.PathLike[str]) -> list[str]:
    """Returns which files of the manifest are missing or altered."""
    directory = pathlib.Path(directory)
    found = []
    for name, expected in self.files.items():
      try:
        if storage.sha256_of(directory / name) != expected:
          found.append(f'{name!r} has another SHA-256 than the manifest')
      except storage.ArtifactError:
        found.append(f'{name!r} is missing')
    return found


def canonical_json(content: Any) -> bytes:
  """Returns the one way to write a JSON value (RFC 8785).

  Keys are sorted, numbers are written as ECMAScript writes them, text is UTF-8.

  Raises:
    DocumentError: It holds what JSON cannot (NaN, infinity, integers of 2^53
      or more, keys that are no text), or is nested too deeply.
  """
  try:
    return rfc8785.dumps(content)
  except RecursionError as error:
    raise DocumentError('a document must not be nested too deeply.') from error
  except (rfc8785.CanonicalizationError, UnicodeError) as error:
    raise DocumentError(
      f'a document must hold finite JSON values only: {_short(error)}.'
    ) from error


def digest_of(content: Any) -> str:
  """Returns the SHA-256 (hex) of a JSON value's canonical form."""
  return hashlib.sha256(canonical_json(content)).hexdigest()


def digest_of_files(files: Mapping[str, str]) -> str:
  """Returns the digest of `{relative path: SHA-256}`."""
  return digest_of(dict(files))


# ---- sentences ----

_RULES = {
  'missing': 'must be there',
  'extra_forbidden': 'is not part of this form',
  'float_type': 'must be a number',
  'int_type': 'must be a whole number',
  'int_from_float': 'must be a whole number',
  'string_type': 'must be text',
  'bool_type': 'must be true or false',
  'dict_type': 'must be an object',
  'model_type': 'must be an object',
  'tuple_type': 'must be a list',
  'finite_number': 'must be finite',
}
_LIMITS = {
  'greater_than_equal': ('>=', 'ge'),
  'greater_than': ('>', 'gt'),
  'less_than_equal': ('<=', 'le'),
  'less_than': ('<', 'lt'),
}


def _sentence(name: str, item: dict[str, Any]) -> str:
  """Returns one pydantic error as: field, rule, value."""
  field = name + ''.join(
    f'[{part}]' if isinstance(part, int) else f'.{part}' for part in item['loc']
  )
  kind, context = item['type'], item.get('ctx', {})
  if kind in ('missing', 'extra_forbidden'):
    return f'{field} {_RULES[kind]}.'
  if kind in _LIMITS:
    sign, key = _LIMITS[kind]
    rule = f'must be {sign} {context[key]}'
  elif kind in ('literal_error', 'enum'):
    rule = f'must be one of {context["expected"]}'
  elif kind == 'string_pattern_mismatch':
    rule = f'must match {context["pattern"]}'
  elif kind == 'value_error':
    return f'{field}: {context["error"]}'
  else:
    rule = _RULES.get(kind, str(item['msg'])[:1].lower() + str(item['msg'])[1:])
  return f'{field} {rule}, got {_short(item["input"])}.'


def _short(value: Any) -> str:
  text = str(value) if isinstance(value, Exception) else repr(value)
  return text if len(text) <= 80 else f'{text[:77]}...'
