"""What every file of configs/ and every frozen run is read into: records that cannot change, with no unknown key and
no number without end. `repro.experiments.errors.validate` fills one, and tells what is wrong."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """The base of all of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
