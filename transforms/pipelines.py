"""The pipelines as data: which passes each level runs, in order."""

from __future__ import annotations

from dataclasses import replace

from dcir.transforms.assign_layouts import AssignLayouts
from dcir.transforms.base import Pass
from dcir.transforms.fold_constants import FoldConstants
from dcir.transforms.fold_static import FoldStatic
from dcir.transforms.fuse_attention import FuseAttention
from dcir.transforms.fuse_epilogues import FuseEpilogues
from dcir.transforms.fuse_producers import FuseProducers
from dcir.transforms.fuse_segments import FuseSegments
from dcir.transforms.fuse_siblings import FuseSiblings
from dcir.transforms.fuse_sums import FuseSums
from dcir.transforms.group_scatters import GroupScatters
from dcir.transforms.join_rows import JoinRows
from dcir.transforms.join_sums import JoinSums
from dcir.transforms.keep_in_place import KeepInPlace
from dcir.transforms.lend_inputs import LendInputs
from dcir.transforms.lend_results import LendResults
from dcir.transforms.merge_common_subexpressions import MergeCommonSubexpressions
from dcir.transforms.order_execution import OrderExecution
from dcir.transforms.pack_weights import PackWeights
from dcir.transforms.plan_arena import PlanArena
from dcir.transforms.prepare_static import PrepareStatic
from dcir.transforms.read_pieces import ReadPieces
from dcir.transforms.remove_dead_code import RemoveDeadCode
from dcir.transforms.round_as_packed import RoundAsPacked
from dcir.transforms.scale_weights import ScaleWeights
from dcir.transforms.share_keys import ShareKeys
from dcir.transforms.simplify_algebra import SimplifyAlgebra
from dcir.transforms.sink_copies import SinkCopies
from dcir.transforms.split_reduction import SplitReduction
from dcir.transforms.stream_images import StreamImages
from dcir.transforms.unfold_images import UnfoldImages
from dcir.transforms.use_dots import UseDots
from dcir.transforms.use_winograd import UseWinograd
from dcir.transforms.widen_products import WidenProducts
from dcir.transforms.write_in_place import WriteInPlace


def pipeline(level: int, *, matrix_unit: bool = False, dots: bool = False) -> tuple[Pass, ...]:
    """The passes of ``-O<level>``: all tiers up to it; level 0 rewrites nothing.

    Args:
        level: 0 to 4.
        matrix_unit: whether the processor has one, which some passes' costs depend on.
        dots: whether it multiplies bf16 in pairs.
    """
    passes = (p for tier in range(level + 1) for p in TIERS[tier]) if level > 0 else ()
    return tuple(_for_processor(p, matrix_unit, dots) for p in passes)


def _for_processor(p: Pass, matrix_unit: bool, dots: bool) -> Pass:
    if isinstance(p, UseDots):
        return replace(p, dots=dots)
    return replace(p, matrix=matrix_unit) if isinstance(p, UseWinograd | ScaleWeights | StreamImages) else p


TIERS: dict[int, tuple[Pass, ...]] = {
    0: (FoldConstants(), SimplifyAlgebra(), MergeCommonSubexpressions(), RemoveDeadCode()),
    1: (WriteInPlace(), SplitReduction()),
    2: (
        WidenProducts(),
        FuseEpilogues(),
        FuseAttention(),
        ShareKeys(),
        FoldStatic(),
        FuseProducers(),
        FuseEpilogues(),
        GroupScatters(),
        FuseSegments(),
        FuseSiblings(),
    ),
    3: (
        AssignLayouts(),
        ReadPieces(),
        SinkCopies(),
        JoinSums(),
        UseWinograd(),
        UnfoldImages(),
        UseDots(),
        PackWeights(),
        RoundAsPacked(),
        ScaleWeights(),
        FuseSums(),
        FuseProducers(convolved=True),
        SplitReduction(leave_convolved=False),
        PrepareStatic(),
    ),
    4: (JoinRows(), OrderExecution(), StreamImages(), LendInputs(), LendResults(), KeepInPlace(), PlanArena()),
}
