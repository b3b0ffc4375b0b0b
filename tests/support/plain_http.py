"""An HTTP client without TLS: loading the system's certificate authorities takes 20 ms per client."""

from __future__ import annotations

from functools import partial

import httpx2

get = partial(httpx2.get, verify=False)
put = partial(httpx2.put, verify=False)
request = partial(httpx2.request, verify=False)
Client = partial(httpx2.Client, verify=False)
