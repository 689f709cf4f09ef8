"""The pipeline as data: all passes in the order in which they run; a level runs those whose tier it has reached."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from dcir.transforms.base import Pass
from dcir.transforms.registered import with_registered
from dcir.transforms.tidy.fold_constants import FoldConstants
from dcir.transforms.tidy.merge_common_subexpressions import MergeCommonSubexpressions
from dcir.transforms.tidy.prepare_static import PrepareStatic
from dcir.transforms.tidy.remove_dead_code import RemoveDeadCode
from dcir.transforms.tidy.run_in_order import RunInOrder
from dcir.transforms.tidy.shorten_indices import ShortenIndices
from dcir.transforms.tidy.simplify_algebra import SimplifyAlgebra
from dcir.transforms.tidy.trim_bodies import TrimBodies
from dcir.transforms.tier1_operator.hoist_invariants import HoistInvariants
from dcir.transforms.tier1_operator.know_halves import KnowHalves
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
from dcir.transforms.tier2_fusion.merge_parallel_convolutions import MergeParallelConvolutions
from dcir.transforms.tier2_fusion.merge_summed_convolutions import MergeSummedConvolutions
from dcir.transforms.tier2_fusion.round_as_packed import RoundAsPacked
from dcir.transforms.tier2_fusion.share_keys import ShareKeys
from dcir.transforms.tier3_layout.assign_layouts import AssignLayouts
from dcir.transforms.tier3_layout.read_cache_in_place import ReadCacheInPlace
from dcir.transforms.tier3_layout.sink_copies import SinkCopies
from dcir.transforms.tier4_movement.keep_in_place import KeepInPlace
from dcir.transforms.tier4_movement.order_execution import OrderExecution
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from dcir.transforms.tier4_movement.reuse_result_buffers import ReuseResultBuffers
from dcir.transforms.tier4_movement.reuse_saved_tensors import ReuseSavedTensors
from dcir.transforms.tier4_movement.run_per_image import RunPerImage
from dcir.transforms.tier4_movement.write_in_place import WriteInPlace

PASSES: tuple[Pass, ...] = (
    # The graph says the same with less.
    FoldConstants(),
    ShortenIndices(),
    FoldConstants(),
    SimplifyAlgebra(),
    MergeCommonSubexpressions(),
    TrimBodies(),
    RemoveDeadCode(),
    HoistInvariants(),
    WriteInPlace(),
    # Loops: long ones in parts, products with what surrounds them, neighbours in one nest.
    SplitReduction(),
    WidenProducts(),
    FuseEpilogues(),
    FuseAttention(),
    ShareKeys(),
    MergeParallelConvolutions(),
    FoldStatic(),
    FuseProducers(),
    FuseEpilogues(),
    GroupScatters(),
    FuseSegments(),
    FuseSiblings(),
    # Layouts, which decide what the forms of products below may take.
    AssignLayouts(),
    ReadCacheInPlace(),
    SinkCopies(),
    # Products and convolutions in the form that suits their sizes, their weights in the order in which that reads them.
    MergeSummedConvolutions(),
    KnowHalves(),
    UseWinograd(),
    LowerToIm2col(),
    UseDots(),
    PackWeights(),
    HoistInvariants(),
    RoundAsPacked(),
    FoldChannelScales(),
    FuseChannelStatistics(),
    KnowHalves(),
    # What the statistics have left.
    FuseProducers(),
    SplitReduction(),
    FuseConcatenatedWrites(),
    # Nothing is rewritten any more: what runs when, and what lies where.
    PrepareStatic(),
    OrderExecution(),
    RunPerImage(),
    ReuseSavedTensors(),
    ReuseResultBuffers(),
    KeepInPlace(),
    PlanArena(),
)


@functools.cache
def all_passes() -> tuple[Pass, ...]:
    """``PASSES``, and those that other packages have registered (``registered.py``)."""
    return with_registered(PASSES)


def pipeline(level: int) -> tuple[Pass, ...]:
    """The passes of ``-O<level>``, 0 to 4: those of all tiers up to it, in the one order; level 0 rewrites nothing, and
    has every operator run as the loops that it is made of.

    What their costs depend on they ask the network's target, which also has the schedules of all kernels from level 1 on.
    """
    return tuple(p for p in all_passes() if p.tier <= level) if level > 0 else (RunInOrder(),)


def same_at_all_sizes(passes: Iterable[Pass], *, images: bool = False) -> tuple[Pass, ...]:
    """Of some passes those that rewrite a graph in the same way whatever its sizes.

    The others write indices in forms of their extents, split by an extent's divisors, lend memory of inputs and results, which moves, or
    take images one by one; of ``images`` of any size Winograd's form is left out, too, and sums in convolutions: there is no kernel for all
    sizes of either, and small ones are faster without the former.
    """
    left_out: tuple[type, ...] = (ShortenIndices, SplitReduction, ReuseSavedTensors, ReuseResultBuffers, RunPerImage)
    if images:
        left_out = (*left_out, UseWinograd, FuseChannelStatistics)
    return tuple(p for p in passes if not isinstance(p, left_out))
