"""A web server in this process that has the files of a folder."""

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files, and no lists of folders, as most web servers do."""

    def log_message(self, *arguments: Any) -> None:
        pass

    def list_directory(self, path: Any) -> None:
        self.send_error(403)


@contextlib.contextmanager
def serve(folder: Path, handler: type[QuietHandler] = QuietHandler) -> Iterator[str]:
    """Serve the files of a folder; yield the server's "host:port"."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()
