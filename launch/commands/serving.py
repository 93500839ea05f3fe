"""Commands of serving: `index`, `serve`, `embed`, `search`."""

import json
import pathlib
import sys
from typing import Any

import click

_DEFAULT_DEADLINE_SECONDS = 30.0


def _client_options(function: Any) -> Any:
  """Adds the files to ask about, the server and the deadline to a command."""
  for option in (
    click.option(
      '--deadline',
      'deadline_seconds',
      type=click.FloatRange(min=0, min_open=True),
      default=_DEFAULT_DEADLINE_SECONDS,
      show_default=True,
      help='Seconds for a request.',
    ),
    click.option(
      '--server',
      'address',
      required=True,
      metavar='HOST:PORT',
      help='Address of a running `dpemb serve`.',
    ),
    click.argument('files', nargs=-1, required=True, type=click.Path()),
  ):
    function = option(function)
  return function


@click.command()
@click.argument('export', type=click.Path())
@click.option('--index', 'index_path', type=click.Path(), help='For Search.')
@click.option('--host', default='127.0.0.1', show_default=True)
@click.option(
  '--port',
  type=click.IntRange(0, 65535),
  default=0,
  help='0, the default, takes any free port.',
)
@click.option('--port-file', type=click.Path(), help='Write the port here.')
@click.option(
  '--backend',
  type=click.Choice(['tflite', 'saved_model']),
  default='tflite',
  show_default=True,
)
@click.option(
  '--workers',
  type=click.IntRange(min=1),
  help='Computing threads.  [default: one a core]',
)
@click.option('--max-images', type=click.IntRange(min=1), help='Of a request.')
@click.option('--max-message-bytes', type=click.IntRange(min=1024))
@click.option(
  '--drain-seconds',
  type=click.FloatRange(min=0),
  help='Between NOT_SERVING and refusing requests.',
)
@click.option(
  '--grace-seconds',
  type=click.FloatRange(min=0),
  help='For requests in flight to finish.',
)
@click.option(
  '--allow-unprotected',
  is_flag=True,
  help='Serve a model without a privacy certificate, or of a simulation.',
)
def serve(
  export: str,
  index_path: str | None,
  host: str,
  port: int,
  port_file: str | None,
  backend: str,
  allow_unprotected: bool,
  **limits: float | None,
) -> None:
  """Answer Embed and Search over gRPC until SIGTERM or Ctrl-C.

  EXPORT is a version of an export, or the directory of its versions.

  \b
  Example:
    dpemb serve runs/quickstart/export --index runs/quickstart/index/test \\
      --port 50051
  """
  from serving import images
  from serving import index as index_lib
  from serving import model_store
  from serving import server
  from serving import servicer

  def given(*names: str) -> dict[str, Any]:
    return {name: limits[name] for name in names if limits[name] is not None}

  # Everything that can be refused is refused before TensorFlow is imported.
  opened = model_store.open_for_serving(
    export, allow_unprotected=allow_unprotected
  )
  index = None
  if index_path is not None:
    index = index_lib.load(index_path)
    model_store.check_index(index.model_digest, opened)
  options = server.ServerOptions(
    host=host, port=port, **given('workers', 'drain_seconds', 'grace_seconds')
  )
  server.check_can_listen(host, port)
  if not server.is_loopback(host):
    click.echo(
      f'dpemb: warning: {host} may be reached from other machines, without'
      ' TLS or authentication; put a proxy before it.',
      err=True,
    )
  service = servicer.Service(
    model_store.ServedModel(opened, backend=backend, workers=options.workers),
    index=index,
    limits=images.Limits(**given('max_images', 'max_message_bytes')),
  )

  def on_ready(address: str) -> None:
    if port_file is not None:
      server.write_port_file(port_file, address)
    items = f'{len(index)} items' if index is not None else 'none'
    click.echo(
      f'ready on {address}: model {opened.name} version {opened.version}'
      f' digest {opened.digest[:12]}, index {items}, backend {backend}'
    )
    sys.stdout.flush()

  server.run(service, options, on_ready=on_ready)
  click.echo('stopped')


@click.command()
@click.argument('export', type=click.Path())
@click.argument('store', type=click.Path())
@click.argument('output', type=click.Path())
@click.option(
  '--label',
  default='identity',
  show_default=True,
  help='Label column of the store to keep with the items.',
)
@click.option('--replace', is_flag=True, help='Replace an index at OUTPUT.')
def index(
  export: str, store: str, output: str, label: str, replace: bool
) -> None:
  """Embed the images of a user store and index them for Search.

  \b
  Example:
    dpemb index runs/quickstart/export runs/quickstart/data/test \\
      runs/quickstart/index/test
  """
  from launch.steps import index as index_step
  from tff_dpemb.data import user_store
  from tff_dpemb.export import registry

  opened = registry.open_export(export)
  images = user_store.UserStore.open(store)
  if images.image_shape != opened.image_shape:
    raise click.UsageError(
      f'store must have images of shape {opened.image_shape}, the'
      f" export's, got {images.image_shape}."
    )
  if label not in images.label_names:
    raise click.UsageError(
      f'--label must be in {sorted(images.label_names)}, got {label!r}.'
    )
  if pathlib.Path(output).exists() and not replace:
    raise click.UsageError(
      f'OUTPUT {output!r} must not exist; give --replace or another path.'
    )
  if not images.num_examples:
    raise click.UsageError(f'store {store!r} must hold images, got none.')
  built, _ = index_step.index_store(
    opened, images, pathlib.Path(output), label=label, replace=replace
  )
  click.echo(f'indexed {len(built)} images at {output}')


@click.command()
@_client_options
@click.option(
  '--output', type=click.Path(), help='Write float32 [N, D] here as .npy.'
)
def embed(
  files: tuple[str, ...],
  address: str,
  deadline_seconds: float,
  output: str | None,
) -> None:
  """Ask a server for the embeddings of image files.

  Prints one JSON line a file, or writes one array with --output.

  \b
  Example:
    dpemb embed a.png b.png --server 127.0.0.1:50051 --output ab.npy
  """
  import io

  import numpy as np

  from serving import client as client_lib
  from tff_dpemb.artifacts import storage

  contents = [pathlib.Path(file).read_bytes() for file in files]
  with client_lib.Client(address, deadline_seconds=deadline_seconds) as client:
    embeddings = client.embed(contents)
    digest = client.model_digest
  if output is not None:
    buffer = io.BytesIO()
    np.save(buffer, embeddings)
    storage.atomic_write_bytes(output, buffer.getvalue())
    click.echo(
      f'wrote {list(embeddings.shape)} to {output} (model {digest[:12]})'
    )
    return
  for file, embedding in zip(files, embeddings, strict=True):
    values = [round(float(value), 7) for value in embedding]
    click.echo(json.dumps({'file': file, 'embedding': values}))


@click.command()
@_client_options
@click.option(
  '-k', '--neighbours', type=click.IntRange(min=1), default=8, show_default=True
)
def search(
  files: tuple[str, ...], address: str, deadline_seconds: float, neighbours: int
) -> None:
  """Ask a server for the indexed items nearest to image files.

  Prints one JSON line a file, the neighbours best first.

  \b
  Example:
    dpemb search a.png --server 127.0.0.1:50051 -k 5
  """
  from serving import client as client_lib

  contents = [pathlib.Path(file).read_bytes() for file in files]
  with client_lib.Client(address, deadline_seconds=deadline_seconds) as client:
    found = client.search(images=contents, k=neighbours)
  for file, items in zip(files, found, strict=True):
    answers = [
      {'id': item.id, 'label': item.label, 'score': round(item.score, 6)}
      for item in items
    ]
    click.echo(json.dumps({'file': file, 'neighbours': answers}))
