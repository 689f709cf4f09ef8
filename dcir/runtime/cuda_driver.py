"""NVIDIA's driver through its C interface: kernels loaded from machine code, and the addresses of what launches them.

Memory, streams and devices are PyTorch's: nothing is allocated here, and nothing waits.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence

from dcir.errors import ArtefactInvalid, CompilerNotFound

_LIBRARY = "libcuda.so.1"
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_ALWAYS_THERE = 48 << 10  # bytes of shared memory that need no asking


class CudaDriver:
    """The loaded driver.

    Attributes:
        launch, copy, move, wait, record: addresses of the functions that a library is bound to (``codegen/cuda/print_driver.py``).
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as e:
            raise CompilerNotFound(
                "this machine has no driver of NVIDIA's", where=_LIBRARY, details=[("system", str(e))],
                hint="target='cpp', or install the driver",
            ) from e  # fmt: skip
        call = self._library
        call.cuGetErrorName.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
        call.cuLibraryLoadData.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p,
            ctypes.c_void_p, ctypes.c_uint,
        ]  # fmt: skip
        call.cuLibraryGetKernel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p]
        call.cuLibraryUnload.argtypes = [ctypes.c_void_p]
        call.cuKernelGetFunction.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        call.cuKernelSetAttribute.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
        call.cuDevicePrimaryCtxRetain.argtypes = [ctypes.c_void_p, ctypes.c_int]
        call.cuCtxSetCurrent.argtypes = [ctypes.c_void_p]
        call.cuCtxGetCurrent.argtypes = [ctypes.c_void_p]
        self._check(call.cuInit(0))
        names = "cuLaunchKernel", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuStreamSynchronize", "cuEventRecord"
        found = [ctypes.cast(getattr(call, n), ctypes.c_void_p) for n in names]
        self.launch, self.copy, self.move, self.wait, self.record = found
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._here = threading.local()

    def enter(self, device: int) -> None:
        """Have a device's context be current in this thread, as it is in threads that PyTorch has run something in."""
        if getattr(self._here, "device", None) == device:
            return
        current = ctypes.c_void_p()
        self._check(self._library.cuCtxGetCurrent(ctypes.byref(current)))
        if not current.value:
            self._check(self._library.cuCtxSetCurrent(self._context(device)))
        self._here.device = device

    def load(self, images: Sequence[tuple[str, bytes, int]], device: int) -> Kernels:
        """Kernels of machine code.

        Args:
            images: name, code, and bytes of dynamic shared memory of each kernel.
            device: on which they will run first.

        Raises:
            ArtefactInvalid: the driver does not take one.
        """
        return Kernels(self, images, device)

    def name_of(self, code: int) -> str:
        """The driver's name of an error."""
        name = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(name))
        return (name.value or b"error").decode()

    def _context(self, device: int) -> ctypes.c_void_p:
        if device not in self._contexts:
            made = ctypes.c_void_p()
            self._check(self._library.cuDevicePrimaryCtxRetain(ctypes.byref(made), device))
            self._contexts[device] = made
        return self._contexts[device]

    def _check(self, code: int, what: str = "") -> None:
        if code:
            raise ArtefactInvalid(f"NVIDIA's driver: {self.name_of(code)}", where=what or None)


class Kernels:
    """Loaded kernels; they go with this object.

    Attributes:
        table: their handles, for ``dcir_bind``.
    """

    def __init__(self, driver: CudaDriver, images: Sequence[tuple[str, bytes, int]], device: int) -> None:
        self._driver, self._libraries, self._asked = driver, [], set[int]()
        self._images = images  # the driver may read them as long as they are loaded
        self.table = (ctypes.c_void_p * max(len(images), 1))()
        driver.enter(device)
        call = driver._library
        for i, (name, image, _) in enumerate(images):
            library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
            code = call.cuLibraryLoadData(ctypes.byref(library), image, None, None, 0, None, None, 0)
            driver._check(code, f"loading {name}")
            self._libraries.append(library)
            driver._check(call.cuLibraryGetKernel(ctypes.byref(kernel), library, name.encode()), name)
            self.table[i] = kernel.value
        self.ready(device)

    def is_ready(self, device: int) -> bool:
        """Whether ``ready`` has nothing to do."""
        return device in self._asked

    def ready(self, device: int) -> None:
        """Load for a device what is loaded late otherwise, which a capture of a graph forbids."""
        if device in self._asked:
            return
        call, driver = self._driver._library, self._driver
        driver.enter(device)
        for handle, (name, _, shared) in zip(self.table, self._images, strict=False):
            kernel, function = ctypes.c_void_p(handle), ctypes.c_void_p()
            driver._check(call.cuKernelGetFunction(ctypes.byref(function), kernel), name)
            if shared > _ALWAYS_THERE:
                driver._check(call.cuKernelSetAttribute(_MAX_DYNAMIC_SHARED, shared, kernel, device), name)
        self._asked.add(device)

    def __del__(self) -> None:
        for library in self._libraries:
            self._driver._library.cuLibraryUnload(library)


@functools.cache
def cuda_driver() -> CudaDriver:
    """The driver of this process.

    Raises:
        CompilerNotFound: the machine has none.
    """
    return CudaDriver()
