"""The pipelines as data: which passes each level runs, in order."""

from __future__ import annotations

from dcir.transforms.base import Pass
from dcir.transforms.tidy.fold_constants import FoldConstants
from dcir.transforms.tidy.merge_common_subexpressions import MergeCommonSubexpressions
from dcir.transforms.tidy.remove_dead_code import RemoveDeadCode
from dcir.transforms.tidy.simplify_algebra import SimplifyAlgebra
from dcir.transforms.tier1_operator.lower_to_im2col import LowerToIm2col
from dcir.transforms.tier1_operator.pack_weights import PackWeights
from dcir.transforms.tier1_operator.split_reduction import SplitReduction
from dcir.transforms.tier1_operator.use_dots import UseDots
from dcir.transforms.tier1_operator.use_winograd import UseWinograd
from dcir.transforms.tier1_operator.widen_products import WidenProducts
from dcir.transforms.tier2_fusion.fold_channel_scales import FoldChannelScales
from dcir.transforms.tier2_fusion.fold_static import FoldStatic
from dcir.transforms.tier2_fusion.fuse_attention import FuseAttention
from dcir.transforms.tier2_fusion.fuse_channel_statistics import FuseChannelStatistics
from dcir.transforms.tier2_fusion.fuse_concatenated_writes import FuseConcatenatedWrites
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier2_fusion.fuse_segments import FuseSegments
from dcir.transforms.tier2_fusion.fuse_siblings import FuseSiblings
from dcir.transforms.tier2_fusion.group_scatters import GroupScatters
from dcir.transforms.tier2_fusion.merge_summed_convolutions import MergeSummedConvolutions
from dcir.transforms.tier2_fusion.round_as_packed import RoundAsPacked
from dcir.transforms.tier2_fusion.share_keys import ShareKeys
from dcir.transforms.tier3_layout.assign_layouts import AssignLayouts
from dcir.transforms.tier3_layout.read_cache_in_place import ReadCacheInPlace
from dcir.transforms.tier3_layout.sink_copies import SinkCopies
from dcir.transforms.tier4_movement.keep_in_place import KeepInPlace
from dcir.transforms.tier4_movement.order_execution import OrderExecution
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from dcir.transforms.tier4_movement.prepare_static import PrepareStatic
from dcir.transforms.tier4_movement.reuse_result_buffers import ReuseResultBuffers
from dcir.transforms.tier4_movement.reuse_saved_tensors import ReuseSavedTensors
from dcir.transforms.tier4_movement.run_per_image import RunPerImage
from dcir.transforms.tier4_movement.write_in_place import WriteInPlace


def pipeline(level: int) -> tuple[Pass, ...]:
    """The passes of ``-O<level>``, 0 to 4: all tiers up to it; level 0 rewrites nothing. What they cost they ask the network's target."""
    return tuple(p for tier in range(level + 1) for p in TIERS[tier]) if level > 0 else ()


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
        ReadCacheInPlace(),
        SinkCopies(),
        MergeSummedConvolutions(),
        UseWinograd(),
        LowerToIm2col(),
        UseDots(),
        PackWeights(),
        RoundAsPacked(),
        FoldChannelScales(),
        FuseChannelStatistics(),
        FuseProducers(convolved=True),
        SplitReduction(leave_convolved=False),
        PrepareStatic(),
    ),
    4: (
        FuseConcatenatedWrites(),
        OrderExecution(),
        RunPerImage(),
        ReuseSavedTensors(),
        ReuseResultBuffers(),
        KeepInPlace(),
        PlanArena(),
    ),
}
