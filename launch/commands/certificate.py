"""The commands `certificate`: show, verify, keygen, sign.

Accounting libraries take seconds to import, so each command imports what it
needs when it runs. Domain errors end in `launch.cli`, which prints one line.
"""

import json
import pathlib

import click

from launch.commands import ledgers


@click.group()
def certificate() -> None:
  """Privacy certificates: show, verify, keygen, sign.

  \b
  Example:
    dpemb certificate verify runs/quickstart/export/1/certificate.json
  """


@certificate.command('show')
@click.argument('path', required=False)
@click.option(
  '--format',
  'form',
  type=click.Choice(['markdown', 'html', 'json']),
  default='markdown',
  show_default=True,
)
@click.option('--schema', is_flag=True, help='Print the JSON Schema instead.')
def certificate_show(path: str | None, form: str, schema: bool) -> None:
  """Prints a certificate as a page.

  \b
  Example:
    dpemb certificate show certificate.json --format html > certificate.html
  """
  from launch.pages import certificate_page
  from tff_dpemb.privacy.certificate import document

  if schema:
    click.echo(json.dumps(document.Certificate.json_schema(), indent=2))
    return
  if path is None:
    raise click.UsageError('PATH must be given.')
  content = document.read(_certificate_path(path))
  match form:
    case 'markdown':
      click.echo(certificate_page.to_markdown(content), nl=False)
    case 'html':
      click.echo(certificate_page.to_html(content), nl=False)
    case _:
      click.echo(content.to_bytes(), nl=False)


@certificate.command('verify')
@click.argument('path')
@click.option('--ledger', 'url', metavar='URL', help='Check against this too.')
@click.option(
  '--public-key', metavar='FILE', help='It must be signed by this key.'
)
def certificate_verify(
  path: str, url: str | None, public_key: str | None
) -> None:
  """Recomputes a certificate; exit code 5 if anything does not hold.

  Epsilon is recomputed from the mechanism and the sampling alone, the hashes
  of the artefacts beside it are checked, with --ledger that every draw of the
  release is certified, and with --public-key who signed it.

  \b
  Example:
    dpemb certificate verify export/1 --ledger runs/ledger.sqlite
  """
  from tff_dpemb.privacy.certificate import document
  from tff_dpemb.privacy.certificate import statement
  from tff_dpemb.privacy.certificate import verification

  place = _certificate_path(path)
  with ledgers.open_ledger(url) as book:
    found = verification.verify(place, ledger=book, public_key=public_key)
  ledgers.fail_on(found)
  content = document.read(place)
  click.echo(f'holds: {statement.of(content).text}')
  if url is None:
    click.echo('not checked against a ledger (give --ledger)')
  if public_key is not None:
    click.echo(f'signed by the key of {public_key}')
  elif content.signature is not None:
    click.echo(
      f'signed by key {content.signature.public_key[:16]}, not checked'
      ' whose it is (give --public-key)'
    )


@certificate.command('keygen')
@click.argument('path')
def certificate_keygen(path: str) -> None:
  """Makes a key to sign with: PATH (keep it secret) and PATH.pub (hand it out).

  \b
  Example:
    dpemb certificate keygen keys/privacy-office
  """
  from tff_dpemb.privacy.certificate import signature

  public = signature.make_key(path)
  click.echo(f'private key {path} (mode 0600), public key {public}')


@certificate.command('sign')
@click.argument('path')
@click.option('--key', required=True, metavar='FILE', help='Private key.')
@click.option('--ledger', 'url', metavar='URL', help='Check against this too.')
def certificate_sign(path: str, key: str, url: str | None) -> None:
  """Signs a certificate that holds, in its file; replaces a signature.

  What does not verify is not signed (exit code 5). The page and the export's
  manifest beside it are brought in step.

  \b
  Example:
    dpemb certificate sign export/1 --key keys/privacy-office
  """
  from launch.pages import certificate_page
  from tff_dpemb.artifacts import storage
  from tff_dpemb.export import registry
  from tff_dpemb.privacy.certificate import document
  from tff_dpemb.privacy.certificate import signature
  from tff_dpemb.privacy.certificate import verification

  place = _certificate_path(path)
  content = document.read(place).model_copy(update={'signature': None})
  with ledgers.open_ledger(url) as book:
    found = verification.verify(content, ledger=book, directory=place.parent)
  ledgers.fail_on(found)
  signed = signature.sign(content, key)
  signed.write(place)
  registry.name_certificate(place.parent)
  page = place.with_name('certificate.html')
  if page.exists():
    storage.atomic_write_bytes(page, certificate_page.to_html(signed).encode())
  public_key = signed.signature.public_key if signed.signature else ''
  click.echo(f'signed {place} with key {public_key[:16]}')


def _certificate_path(path: str) -> pathlib.Path:
  """Returns the file, given it or the directory that it lies in."""
  place = pathlib.Path(path)
  if place.is_dir():
    place = place / 'certificate.json'
  if not place.is_file():
    raise click.UsageError(
      f'{str(place)!r} must be a certificate; give its file, or the directory'
      ' that it lies in.'
    )
  return place
