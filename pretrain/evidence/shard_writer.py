"""Tensors to one safetensors file per rank, under the save plans of torch.distributed.checkpoint."""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from pretrain import files
from pretrain.errors import DivergedError
from pretrain.evidence.checkpoint_record import CheckpointFile, shard_name
from pretrain.evidence.safetensors_file import Chunk, ShardFile, check_name, encode_header
from pretrain.evidence.shards import content_sha256, gather, tensor_sha256
from pretrain.evidence.storage import DTYPE_WORDS, bytes_of, is_distributed, local_part, own_failures

_LARGE = 1 << 20  # bytes from which on a tensor is hashed beside the writing of the file


@dataclass(frozen=True)
class Content:
    """All files of a checkpoint, and the digest of all its tensors."""

    files: tuple[CheckpointFile, ...]
    content_sha256: str


@dataclass(frozen=True)
class Written:
    """What a rank reports of one chunk; sha256: of its bytes, "" when it is only a part of its tensor."""

    file: CheckpointFile
    chunk: Chunk
    sha256: str


def check_savable(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse what the format cannot hold (TypeError, IntegrityError) and what is not finite (DivergedError).

    The first tensor by name with a NaN or an infinity is named. One pass over each floating tensor, and one
    synchronisation per device.
    """
    extremes: dict[torch.device, list[tuple[str, torch.Tensor]]] = {}
    for name in sorted(tensors):
        check_name(name, "a tensor to save")
        local = local_part(name, tensors[name]).detach()
        if local.is_floating_point() and local.numel():
            # NaN and both infinities show in the extremes; isfinite() would take fifteen times as long.
            pair = torch.stack(torch.aminmax(local)).double()
            extremes.setdefault(local.device, []).append((name, pair))
    diverged: list[str] = []
    for pairs in extremes.values():
        finite = torch.stack([pair for _, pair in pairs]).isfinite().all(dim=1).tolist()
        diverged += [name for (name, _), good in zip(pairs, finite, strict=True) if not good]
    if diverged:
        raise DivergedError(
            f"{min(diverged)} is not finite ({len(diverged)} of {len(tensors)} tensors are not): expected a "
            "finite state; no checkpoint was saved, the one before is the last good one"
        )


def file_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return the size of the file that these tensors will be in one process; they may have no values yet."""
    chunks = [
        Chunk(name, DTYPE_WORDS[tensor.dtype], tuple(tensor.shape), (0,) * tensor.dim(), tuple(tensor.shape))
        for name, tensor in tensors.items()
    ]
    return len(encode_header(chunks)[0]) + sum(chunk.bytes for chunk in chunks)


def write(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    *,
    check: Callable[[], None],
    prepare: Callable[[], None],
    seal: Callable[[Content], Any],
) -> Any:
    """Save `tensors` in `folder` with every rank of the default process group; return what `seal` returned.

    check: called on every rank before anything is written; what one rank raises, all ranks raise.
    prepare, seal: called on the coordinator only, before the first file and when all files are durable.
    """
    with own_failures():
        metadata = save(
            {name: tensors[name] for name in sorted(tensors)},
            storage_writer=ShardWriter(folder, check, prepare, seal),
            planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            no_dist=not is_distributed(),
        )
    return metadata.storage_data


class ShardWriter(StorageWriter):
    """Streams a rank's part of the plan into its own file, and hashes the file and each whole tensor."""

    def __init__(
        self,
        folder: Path,
        check: Callable[[], None],
        prepare: Callable[[], None],
        seal: Callable[[Content], Any],
    ) -> None:
        self.folder, self._check, self._prepare, self._seal = folder, check, prepare, seal

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept between checkpoints."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Check this rank's state."""
        self._check()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Keep the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Make the folder ready and give each rank the name of its file."""
        self._prepare()
        return [dataclasses.replace(plan, storage_data=shard_name(rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file; a rank to which the plan leaves nothing writes none."""
        written: Future[list[WriteResult]] = Future()
        written.set_result(self._write(plan, planner) if plan.items else [])
        return written

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        items = {item.index.fqn: item for item in plan.items}
        header, ordered = encode_header(_chunk(item) for item in plan.items)
        digests: dict[str, str] = {}
        stream = self._stream(header, ordered, items, planner, digests)
        published = files.publish(self.folder / plan.storage_data, stream)
        file = CheckpointFile(plan.storage_data, published.bytes, published.sha256)
        written = [Written(file, chunk, digests.get(chunk.name, "")) for chunk in ordered]
        return [WriteResult(items[one.chunk.name].index, one.chunk.bytes, one) for one in written]

    def _stream(
        self,
        header: bytes,
        ordered: list[Chunk],
        items: Mapping[str, WriteItem],
        planner: SavePlanner,
        digests: dict[str, str],
    ) -> Iterator[bytes | memoryview]:
        yield header
        with ThreadPoolExecutor(max_workers=1) as beside:
            for chunk in ordered:
                data = _host_bytes(planner.resolve_data(items[chunk.name]))
                if len(data) != chunk.bytes:
                    raise ValueError(f"{chunk.name}: planned {chunk.bytes} bytes, the tensor has {len(data)}")
                hashing = beside.submit(_sha256, data) if chunk.is_whole and len(data) >= _LARGE else None
                yield data
                if chunk.is_whole:
                    digests[chunk.name] = hashing.result() if hashing else _sha256(data)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Bind the files and the content of all ranks by the record."""
        written: list[Written] = [result.storage_data for of_rank in results for result in of_rank]
        shards = tuple(sorted({one.file for one in written}, key=lambda file: file.path))
        rows = {one.chunk.name: (one.chunk.dtype, one.chunk.whole, one.sha256) for one in written if one.chunk.is_whole}
        cut = metadata.state_dict_metadata.keys() - rows.keys()
        if cut:
            rows |= self._digests(cut, shards)
        # DCP hands this object to every rank, so that every rank learns what was saved.
        metadata.storage_data = self._seal(Content(shards, content_sha256(rows)))

    def _digests(
        self, names: Collection[str], shards: Iterable[CheckpointFile]
    ) -> dict[str, tuple[str, tuple[int, ...], str]]:
        """What `content_sha256` needs of tensors of which no rank holds all, read back from the page cache."""
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(ShardFile.open(self.folder / shard.path)) for shard in shards]
            cut = [tensor for name, tensor in gather(opened).items() if name in names]
            return {tensor.name: (tensor.dtype, tensor.shape, tensor_sha256(tensor)) for tensor in cut}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any folder will do."""
        return True


def _chunk(item: WriteItem) -> Chunk:
    if item.tensor_data is None:
        raise TypeError(f"{item.index.fqn}: a checkpoint holds tensors only")
    data = item.tensor_data
    return Chunk(
        name=item.index.fqn,
        dtype=DTYPE_WORDS[data.properties.dtype],
        shape=tuple(data.chunk.sizes),
        offsets=tuple(data.chunk.offsets),
        whole=tuple(data.size),
    )


def _sha256(data: memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _host_bytes(tensor: Any) -> memoryview:
    """The bytes in C order: a view where they lie so in host memory, else of a copy of this one tensor."""
    return bytes_of(tensor.detach().cpu().resolve_neg().contiguous())
