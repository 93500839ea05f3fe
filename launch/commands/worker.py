"""`dpemb worker`: a worker for the rounds of a coordinator elsewhere."""

import asyncio
import contextlib
import pathlib

import click

from launch import environment
from tff_dpemb.training.execution.workers import channels
from tff_dpemb.training.execution.workers import gateway as worker_gateway
from tff_dpemb.training.execution.workers import process as worker_process


@click.command()
@click.option(
  '--listen',
  default='127.0.0.1:8470',
  show_default=True,
  metavar='HOST:PORT',
  help='The only address to listen on; port 0: any free one.',
)
@click.option(
  '--device',
  'devices',
  multiple=True,
  metavar='NAME',
  help="Train on a device of TensorFlow, as GPU:0, or 'all'; may be repeated.",
)
@click.option('--tls-authority', default='', help='PEM: who both sides trust.')
@click.option('--tls-certificate', default='', help='PEM: of this worker.')
@click.option('--tls-key', default='', help='PEM: its private key.')
@click.option(
  '--insecure-network',
  is_flag=True,
  help='No TLS beyond loopback: a mesh, VPN or firewall protects the network.',
)
@click.option(
  '--log',
  type=click.Path(dir_okay=False, path_type=pathlib.Path),
  default=pathlib.Path('/dev/null'),
  help="Where the worker's own messages go.",
)
def worker(
  listen: str,
  devices: tuple[str, ...],
  tls_authority: str,
  tls_certificate: str,
  tls_key: str,
  insecure_network: bool,
  log: pathlib.Path,
) -> None:
  """Trains virtual clients for a coordinator, until it is stopped.

  Whoever reaches a worker can run any graph there and see what it is sent, so
  it listens on loopback, or with TLS where both sides show a certificate. The
  coordinator names it in `runtime.workers`.

  Without --device it is TFF's C++ worker, which runs on the CPU.

  Example: dpemb worker --listen 10.0.0.7:8470 --tls-authority ca.pem
  --tls-certificate worker.pem --tls-key worker.key
  """
  environment.check_tensorflow_fits()
  tls = channels.tls_from_files(tls_authority, tls_certificate, tls_key)
  host, port = channels.split_address(listen, any_port=True)
  channels.check_is_protected(listen, tls, insecure_network=insecure_network)
  context = tls.worker_context() if tls else None
  names = worker_process.check_devices(devices) if devices else []
  with worker_process.OwnedWorker(log_path=log, devices=names) as process:
    if not process.is_sealed and not insecure_network:
      raise channels.ChannelError(
        'the worker must have a network of its own, which this kernel or'
        ' container forbids: its port would be open to others, without TLS, that'
        " of TFF's own worker on all interfaces. Allow unprivileged user"
        ' namespaces, or give --insecure-network behind a firewall that closes'
        ' every other port.'
      )
    gateway = worker_gateway.Gateway(
      process, host=host, port=port, context=context
    )
    about = ['TLS, both sides' if tls else 'no TLS', *names]
    asyncio.run(_serve(gateway, host, ', '.join(about)))


async def _serve(
  gateway: worker_gateway.Gateway, host: str, about: str
) -> None:
  try:
    await gateway.start()
  except OSError as error:
    raise worker_process.ExecutorError(
      '--listen must be a free port on an address of this machine, got'
      f' {host!r} ({error.strerror or error}).'
    ) from error
  shown = f'[{host}]' if ':' in host else host
  try:
    await gateway.wait_until_it_answers()
    click.echo(f'worker ready on {shown}:{gateway.port} ({about})')
    await gateway.keep()
  finally:
    with contextlib.suppress(Exception):
      await gateway.stop()
