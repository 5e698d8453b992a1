"""Searches a built site as its readers do: by the site's own search worker, which node executes."""

import json
import shutil
import subprocess
from pathlib import Path

NODE = shutil.which("node")
SCRIPT = """
const [worker, index, ...queries] = process.argv.slice(1);
const read = path => require("fs").readFileSync(path, "utf8");
let handle, reply;
globalThis.self = globalThis;
globalThis.addEventListener = (_, handler) => { handle = handler; };
globalThis.postMessage = message => { reply = message; };
(0, eval)(read(worker));
(async () => {
  await handle({data: {type: 0, data: {...JSON.parse(read(index)), options: {suggest: false}}}});
  const found = {};
  for (const query of queries) {
    await handle({data: {type: 2, data: query}});
    found[query] = reply.data.items.map(hits => hits.map(hit => hit.location));
  }
  process.stdout.write(JSON.stringify(found));
})();
"""


def search(site: Path, queries: list[str]) -> dict[str, list[str]]:
    """Return the pages that the site finds for each query, the best first, each by its best section."""
    assert NODE
    (worker,) = site.glob("assets/javascripts/workers/search.*.js")
    command = [NODE, "-e", SCRIPT, str(worker), str(site / "search" / "search_index.json"), *queries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    return {query: [hits[0] for hits in pages] for query, pages in found.items()}
