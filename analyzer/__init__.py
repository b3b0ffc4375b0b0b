"""The analyzer: counts requests from their logs into a database, judges policies, and raises locks.

- `pipeline` is the loop that counts, `flush_executors` runs its flushes, `daemon` runs it with its threads;
  `jobs` is the work besides counting; `watchdog` ends a process whose loop hangs; `sources` has the protocol
  between them and a log;
- `core` computes, `kafka` and `files` read, `store` writes, `config` reads the settings; `build` puts them
  together;
- `health`, `metrics` and `logs` report; `doctor` and `retry` are jobs behind commands;
- `cli`, `web` and `demo` are what an operator uses.

Not here: code that runs inside an application, which is the package `gatekeeper`.
"""
