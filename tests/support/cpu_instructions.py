"""Marks of tests that need oneDNN to use certain instructions: those of the CPU, up to $ONEDNN_MAX_CPU_ISA."""

import pytest

from dsinga.base.errors import UserError

try:
    from dsinga.ops.onednn.library import lib
except UserError as error:
    pytest.skip(str(error), allow_module_level=True)

AVX2_BITS, AVX512_BITS = 0x07, 0x27  # dnnl_cpu_isa_avx2 and dnnl_cpu_isa_avx512_core of dnnl_types.h
_isa = lib.dnnl_get_effective_cpu_isa()
HAS_AVX2, HAS_AVX512 = (_isa & bits == bits for bits in (AVX2_BITS, AVX512_BITS))

AVX512 = pytest.mark.skipif(not HAS_AVX512, reason="oneDNN 3.2 has this kernel with AVX-512 alone")
AVX2 = pytest.mark.skipif(not HAS_AVX2, reason="oneDNN names its implementations after instructions")
AVX2_ALONE = pytest.mark.skipif(not HAS_AVX2 or HAS_AVX512, reason="other instructions have other implementations")
