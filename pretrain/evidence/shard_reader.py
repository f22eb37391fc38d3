"""Verified shard files into tensors of any layout, under the load plans of torch.distributed.checkpoint."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from pretrain.errors import IntegrityError, PretrainError
from pretrain.evidence.shards import StoredChunk, StoredTensor
from pretrain.evidence.storage import (
    DTYPE_WORDS,
    TORCH_DTYPES,
    bytes_of,
    is_distributed,
    local_part,
    own_failures,
)
from pretrain.machine.random_state import is_of_a_gpu

_STAGE = 16 << 20  # bytes read at a time for a tensor that cannot be read into directly


def read(destination: Mapping[str, torch.Tensor], open_tensors: Callable[[], dict[str, StoredTensor]]) -> None:
    """Fill the tensors of `destination` in place, every rank of the default process group its own part.

    open_tensors: called once on every rank before anything is read; what one rank raises, all ranks raise.
    The files it opens must stay open until this returns.
    """
    with own_failures():
        load(
            dict(destination),
            storage_reader=ShardReader(open_tensors),
            planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            no_dist=not is_distributed(),
        )


def check_matches(
    destination: Mapping[str, torch.Tensor],
    tensors: Mapping[str, StoredTensor],
    where: str,
    fault: type[PretrainError] = IntegrityError,
    *,
    of: str = "this model and optimizer",
    most: int = 20,
) -> None:
    """Raise `fault` with the names, dtypes and shapes in which `destination` and the files differ, `most` of them.

    of: what `destination` is.
    """
    faults = [f"{name}: only in the checkpoint" for name in sorted(set(tensors) - set(destination))]
    faults += [f"{name}: not in the checkpoint" for name in sorted(set(destination) - set(tensors))]
    for name in sorted(set(tensors) & set(destination)):
        wanted, stored = destination[name], tensors[name]
        local_part(name, wanted)
        expected = (DTYPE_WORDS[wanted.dtype], tuple(wanted.shape))
        if expected != (stored.dtype, stored.shape):
            found = f"{stored.dtype} {list(stored.shape)}"
            faults.append(f"{name}: expected {expected[0]} {list(expected[1])}, found {found}")
    if faults:
        more = f"; and {len(faults) - most} more" if len(faults) > most else ""
        raise fault(f"{where}: does not fit {of}: {'; '.join(faults[:most])}{more}")


def room_for_generators(
    generators: Mapping[str, torch.Tensor], tensors: Mapping[str, StoredTensor]
) -> dict[str, torch.Tensor]:
    """Return tensors for the states of generators that are stored; one of a GPU may be missing on either side."""
    room = {name: state for name, state in generators.items() if name in tensors or not is_of_a_gpu(name)}
    for name, stored in tensors.items():
        if is_of_a_gpu(name) and name not in room:
            room[name] = torch.empty(stored.shape, dtype=torch.uint8)
    return room


class ShardReader(StorageReader):
    """Serves any box of any tensor from the chunks that hold parts of it."""

    def __init__(self, open_tensors: Callable[[], dict[str, StoredTensor]]) -> None:
        self._open_tensors = open_tensors
        self._chunks: dict[MetadataIndex, StoredChunk] = {}
        self._fault: PretrainError | TypeError | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept between checkpoints."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Open the files, and say what they hold."""
        tensors: dict[str, StoredTensor] = {}
        try:
            tensors = self._open_tensors()
        except (PretrainError, TypeError) as error:
            # DCP logs what is raised here and goes on: it waits for the next call, which stops every rank.
            self._fault = error
        self._chunks = {
            MetadataIndex(name, torch.Size(stored.chunk.offsets)): stored
            for name, tensor in tensors.items()
            for stored in tensor.chunks
        }
        return Metadata({name: _tensor_metadata(tensor) for name, tensor in tensors.items()})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Stop if this rank's files do not verify."""
        if self._fault is not None:
            raise self._fault

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Keep the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Keep the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read each file from its beginning to its end."""
        reads = [(self._chunks[item.storage_index], item) for item in plan.items]
        for stored, item in sorted(reads, key=lambda read: (str(read[0].file.path), read[0].start)):
            target = planner.resolve_tensor(item)
            _read(stored, item, target.detach())
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any folder will do."""
        return True


def _tensor_metadata(tensor: StoredTensor) -> TensorStorageMetadata:
    chunks = [
        ChunkStorageMetadata(torch.Size(stored.chunk.offsets), torch.Size(stored.chunk.shape))
        for stored in tensor.chunks
    ]
    properties = TensorProperties(dtype=TORCH_DTYPES[tensor.dtype])
    return TensorStorageMetadata(properties, torch.Size(tensor.shape), chunks)


def _read(stored: StoredChunk, item: ReadItem, target: torch.Tensor) -> None:
    """Fill `target` with the box of `item.lengths` at `item.storage_offsets` of the stored chunk."""
    if not target.numel():
        return
    # A single number is a row of one.
    shape, lengths = stored.chunk.shape or (1,), tuple(item.lengths) or (1,)
    offsets, target = tuple(item.storage_offsets) or (0,), target.reshape(lengths)
    row = stored.chunk.bytes // shape[0]
    start = stored.start + offsets[0] * row
    if lengths[1:] == shape[1:] and target.device.type == "cpu" and target.is_contiguous():
        stored.file.read_into(start, bytes_of(target))
        return
    rows = max(1, _STAGE // row)
    for first in range(0, lengths[0], rows):
        count = min(rows, lengths[0] - first)
        stage = torch.empty((count, *shape[1:]), dtype=TORCH_DTYPES[stored.chunk.dtype])
        stored.file.read_into(start + first * row, bytes_of(stage))
        for dimension in range(1, len(shape)):
            stage = stage.narrow(dimension, offsets[dimension], lengths[dimension])
        target[first : first + count].copy_(stage)
