"""Where a bundle can run: providers by name, and memory shared with other libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.errors import InputError, UnavailableError
from fastv_trt.limits import BuildLimits
from fastv_trt.runtime import Runtime, dlpack, ort
from fastv_trt.runtime.tensor import as_numpy, host
from tests.conftest import Run, picture


@pytest.mark.parametrize("name", ["cuda", "tensorrt", "tensorrt-rtx"])
def test_a_provider_that_is_not_there_is_not_replaced(bundle: Bundle, cli: Run, name: str) -> None:
    if ort.PROVIDERS[name] in onnxruntime.get_available_providers():
        pytest.skip(f"this onnxruntime has {ort.PROVIDERS[name]}")
    code, out, err = cli("run", bundle.path, "-p", "what?", "--device", name)
    assert (code, out) == (3, "")
    assert f"expected {ort.PROVIDERS[name]} for --device {name}" in err
    assert err.count("\n") == 1


def test_a_provider_that_does_not_load_is_not_replaced(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime itself falls back to the CPU with a line on the console."""
    name = ort.PROVIDERS["cuda"]
    if name in onnxruntime.get_available_providers():
        pytest.skip(f"this onnxruntime has {name}")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [name, "CPUExecutionProvider"])
    with pytest.raises(UnavailableError, match="did not; check its libraries"):
        Runtime.load(bundle, device="cuda")


def test_an_unknown_device_names_the_known_ones(bundle: Bundle) -> None:
    with pytest.raises(InputError, match="cpu, cuda, tensorrt, tensorrt-rtx"):
        Runtime.load(bundle, device="gpu")


def test_a_plug_in_that_is_no_library_is_named(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Run
) -> None:
    (tmp_path / "provider.so").write_bytes(b"not a library")
    monkeypatch.setenv(ort.PLUGIN, str(tmp_path / "provider.so"))
    code, _, err = cli("run", bundle.path, "-p", "what?", "--device", "tensorrt-rtx")
    assert code == 3
    assert f"{ort.PLUGIN}={tmp_path / 'provider.so'}" in err


def test_a_plug_in_is_given_its_device_and_options(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The road of a plug-in, taken with the provider that every onnxruntime lists as a device: the CPU's."""
    given: list[Any] = []
    real = onnxruntime.SessionOptions.add_provider_for_devices
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [])
    monkeypatch.setattr(
        onnxruntime.SessionOptions,
        "add_provider_for_devices",
        lambda self, devices, options: (given.append((devices[0].ep_name, options)), real(self, devices, options)),
    )
    session = ort._load(str(bundle.graph_path("suffix")), ort._options(1), [("CPUExecutionProvider", {})])
    assert given == [("CPUExecutionProvider", {})]
    assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize(("name", "prefix"), [("tensorrt", "trt_profile"), ("tensorrt-rtx", "nv_profile")])
def test_profiles_reach_the_tensorrt_providers(bundle: Bundle, name: str, prefix: str) -> None:
    limits = BuildLimits.of(bundle.manifest.model, max_prompt=128, max_batch=4, capacity=192)
    options = ort.profile_options(bundle, "suffix", name, limits)
    least, best, most = (options[f"{prefix}_{end}_shapes"].split(",") for end in ("min", "opt", "max"))
    model = bundle.manifest.model
    assert most[0] == f"hidden_states:2x128x{model.hidden_size}"
    assert [entry for entry in most if entry.startswith("hidden_states:")][
        1
    ] == f"hidden_states:4x2x{model.hidden_size}"
    names = [entry.partition(":")[0] for entry in most]
    assert names == [entry.partition(":")[0] for entry in least] == [entry.partition(":")[0] for entry in best]
    inputs = [record.name for record in bundle.manifest.graphs["suffix"].inputs]
    assert names == inputs * 2  # prefill, then decode
    cache = next(entry for entry in least if entry.startswith("past_key_values"))
    assert cache.endswith(f":1x{model.key_value_heads}x192x{model.head_size}")


def test_a_tensorrt_provider_gets_its_capacity_before_it_compiles(bundle: Bundle) -> None:
    """The free dimension C becomes a number, which is what a TensorRT parser needs for caches in place."""
    limits = BuildLimits.of(bundle.manifest.model, max_prompt=128, capacity=192)
    gpu = ort.OrtGpu(bundle, name="tensorrt", limits=limits)
    assert gpu.capacity("prefix", 100) == 192
    with pytest.raises(InputError, match="192 cache slots"):
        gpu.capacity("suffix", 193)
    options = ort._options(1)
    options.add_free_dimension_override_by_name("C", 192)
    session = onnxruntime.InferenceSession(str(bundle.graph_path("suffix")), options, ["CPUExecutionProvider"])
    caches = [value.shape for value in session.get_inputs() if value.name.startswith("past")]
    assert caches and all(shape[2] == 192 for shape in caches)


def test_pictures_are_accepted_as_dlpack(bundle: Bundle) -> None:
    torch = pytest.importorskip("torch")
    runtime = Runtime.load(bundle)
    request = runtime.request("what?", [picture(0)])
    pixels = request.vision_inputs["pixel_values"]
    wanted = runtime.chain.device.download(runtime.chain.features(request, 25)["image_features"])
    for given in (torch.from_numpy(np.array(pixels)), dlpack.Exported(host(pixels)), pixels.tolist()):
        same = SimpleNamespace(vision_inputs={"pixel_values": given})
        features = runtime.chain.features(same, 25)["image_features"]  # type: ignore[arg-type]
        found = runtime.chain.device.download(features)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("value", ["text", object(), [[1], [2, 3]]])
def test_what_is_no_tensor_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="expected a tensor"):
        as_numpy(value, "float32")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int32"])
def test_a_tensor_is_shared_with_numpy_and_torch_and_kept_alive(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    array = np.arange(6).reshape(2, 3).astype(dtype)
    before = len(dlpack._handed_out)
    tensor = host(array)
    shared = [reader(dlpack.Exported(tensor)) for reader in (np.from_dlpack, torch.from_dlpack)]
    array[1, 2] = 9
    del tensor
    for one in shared:
        assert one[1, 2] == 9 and tuple(one.shape) == (2, 3)
    assert len(dlpack._handed_out) == before + 2
    del one, shared
    capsule = dlpack.Exported(host(array)).__dlpack__()  # and one that nobody takes
    del capsule
    assert len(dlpack._handed_out) == before


def test_bfloat16_is_shared_and_cast() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    array = as_numpy([[1.0, 2.5]], "bfloat16")
    assert torch.from_dlpack(dlpack.Exported(host(array))).dtype == torch.bfloat16


def test_the_cpu_shares_its_tensors(bundle: Bundle, bundles: Callable[..., Bundle]) -> None:
    device = ort.device(bundle)
    tensor = device.upload(np.ones((2, 2), np.float32))
    assert np.from_dlpack(device.share(tensor)).sum() == 4
