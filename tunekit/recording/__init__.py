"""Recordings: full sweeps made on a GPU, which replay answers from.

The file is gzip-compressed JSON without a time stamp in its header, so equal recordings are equal
files. Its top level, schema 1:

- `format`: "tunekit-recording"; `schema`: 1.
- `device`: the fields of `DeviceInfo`.
- `environment`: `compiler`, `protocol`, `tunekit`, `triton`, `torch`, `driver`, `device_name` and
  `created_at` of the first result.
- `sources`: for each kernel variant the hash of the source that was measured.
- `configs`: every config that occurs, once, in columns: `variant`, the launch fields, `switches`.
- `problems`: a list, each with `problem` (its fields), `space_size` (legal configs at the time),
  `vendor` (the measurement beside the finals, or null), `screening` and `finals`.

`screening` and `finals` are tables in columns of equal length: `config` (its place in `configs`),
`status`, `error`, and the fields of `Measurement`, null where the config failed. Times are rounded
to a nanosecond, error ratios to four digits.
"""

from __future__ import annotations

from tunekit.recording.recording import RecordedProblem, Recording

__all__ = ["RecordedProblem", "Recording"]
