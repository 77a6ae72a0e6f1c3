"""PyTorch's process groups have no method that would go past the sidecar unseen."""

import inspect
import logging
import unittest

import torch.distributed as dist
from fireflyer import backend
from fireflyer.group import HFReduceGroup

#: Methods that move no tensors: names, sizes, options, hooks, and what belongs to the registered backends.
NO_COLLECTIVES = set(
    """abort bound_device_id boxed eager_connect_single_device get_backend get_group_store get_reconfigure_handle group_desc
    group_name merge_remote_group name new_window options rank reconfigure register_abort_hook register_post_hook
    register_pre_hook set_timeout shutdown size split_group supports_abort_hooks supports_reconfigure supports_splitting
    supports_window get_error memory_stats merge resume setUsePgForSymmMemRendezvous shrink split suspend allocate_tensor
    unbox unregister_abort_hook unregister_post_hook unregister_pre_hook
    use_pg_for_symm_mem_rendezvous supports_coalescing supports_time_estimate supports_tensor_alloc""".split()
)
#: The same, of names that begin with an underscore.
PRIVATE = set(
    """_add_ephemeral_timeout _backend_id _create_internal _device_types _enable_collectives_timing _end_coalescing
    _get_backend _get_backend_name _get_sequence_number_for_group _has_hooks _id _pybind11_conduit_v1_ _register_backend
    _register_on_completion_hook _set_default_backend _set_group_desc _set_group_name _set_sequence_number_for_group
    _start_coalescing _start_time_estimate _end_time_estimate _set_group_uid _verify_work_timeout _wait_for_pending_works _allocate_tensor""".split()
)
#: What only other backends do, on purpose.
OTHERS = {"allreduce_sparse"}
#: What newer versions of PyTorch call what older ones call otherwise.
RENAMED = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "gather_single": "gather",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}


class MethodsTest(unittest.TestCase):
    def test_every_method_of_a_process_group_is_ours_or_known_to_be_gloos(self):
        known = NO_COLLECTIVES | PRIVATE | OTHERS
        for kind in (dist.ProcessGroup, dist.distributed_c10d._ProcessGroupWrapper.__mro__[1]):
            for name, method in inspect.getmembers(kind, callable):
                if name.startswith("__") or inspect.isclass(method) or name in known:
                    continue
                with self.subTest(kind=kind.__name__, method=name):
                    defined = getattr(HFReduceGroup, name, None)
                    theirs = getattr(dist.ProcessGroup, name, None)
                    self.assertIsNotNone(defined, "neither ours nor listed")
                    self.assertIsNot(defined, theirs, "neither ours nor listed")

    def test_collectives_have_their_newer_names_as_well(self):
        for newer, older in RENAMED.items():
            with self.subTest(newer):
                self.assertTrue(
                    callable(vars(HFReduceGroup).get(newer) or getattr(HFReduceGroup, newer))
                )
                self.assertTrue(callable(getattr(HFReduceGroup, older)))

    def test_an_unknown_version_of_pytorch_says_so(self):
        with self.assertLogs("fireflyer", "WARNING") as logs:
            logging.getLogger("fireflyer").warning("so that there is one")
            for known in ("2.5.0", "2.6.0+debian", "2.15.0+cu130"):
                backend._look_at_version(known)
            self.assertEqual(len(logs.output), 1)
            for unknown in ("2.4.1", "2.16.0", "3.0", "main"):
                backend._look_at_version(unknown)
        self.assertEqual(len(logs.output), 5)
        self.assertIn("this is 2.4.1", logs.output[1])
