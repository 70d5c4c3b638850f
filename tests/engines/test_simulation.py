"""The session on a SIMULATED device, and the simulation against the real API. Nothing here runs on a GPU."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.errors import BundleError, FastVError, InputError, UnavailableError
from fastv_trt.nvidia import Library
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Generation, Limits, Runtime, Sampling, dlpack, trt_session
from fastv_trt.runtime import trt as session_file
from fastv_trt.runtime.chain import Chain
from fastv_trt.runtime.cuda import Cuda
from fastv_trt.runtime.tensor import Tensor
from fastv_trt.runtime.trt import TrtDevice
from fastv_trt.runtime.trt_session import BUCKET
from fastv_trt.targets import Target
from tests.conftest import picture
from tests.engines.conftest import copied

simulation = pytest.importorskip("tests.engines.simulation", reason="tensorrt-rtx and cuda-python are not installed")


def device(built: tuple[Bundle, Target], **changes: Any) -> TrtDevice:
    bundle, target = built
    cuda = simulation.SimulatedCuda()
    return TrtDevice(bundle, target, simulation.SimulatedTensorRT(bundle, target, cuda), Cuda(cuda), **changes)


def on(simulated: TrtDevice) -> Runtime:
    return Runtime(simulated.bundle, Chain(simulated.bundle, simulated))


@pytest.fixture(scope="module")
def reference(built: tuple[Bundle, Target]) -> Runtime:
    return Runtime.load(built[0])


@pytest.fixture(scope="module")
def simulated(built: tuple[Bundle, Target]) -> Runtime:
    return on(device(built))


LONG = Limits(new_tokens=40, stop=())


@pytest.mark.parametrize("ranking", ["last-query", "received", "random"])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.75])
def test_tokens_are_those_of_onnx_runtime(simulated: Runtime, reference: Runtime, ratio: float, ranking: str) -> None:
    """40 steps cross from one bucket of visible slots into the next."""
    pruning = Pruning(ratio=ratio, ranking=ranking)
    ours = simulated.generate("what is it?", [picture(0)], pruning=pruning, limits=LONG)
    theirs = reference.generate("what is it?", [picture(0)], pruning=pruning, limits=LONG)
    assert ours.prefill.prompt_tokens < BUCKET < ours.prefill.prompt_tokens + 40
    assert ours.tokens == theirs.tokens
    assert list(ours.keep_indices) == list(theirs.keep_indices)


def test_a_batch_of_three_decodes_as_one(simulated: Runtime, reference: Runtime) -> None:
    prompts = [("a", [picture(1)]), ("much longer than the first one", [picture(2)]), ("no picture", [])]
    prunings = [Pruning(ratio=0.5), Pruning(ratio=0.75), Pruning(ratio=0.0)]
    ours, theirs = (
        runtime.answers([runtime.request(*prompt) for prompt in prompts], prunings, LONG)
        for runtime in (simulated, reference)
    )
    assert [a.tokens for a in ours] == [a.tokens for a in theirs]


def test_two_turns_share_their_caches(simulated: Runtime, reference: Runtime) -> None:
    """The second turn adds a picture of its own, and is longer than one bucket."""
    spoken = []
    for runtime in (simulated, reference):
        chain, limits, pruning = runtime.chain, Limits(new_tokens=8, stop=()), Pruning(ratio=0.5)
        first = Generation.start(chain, [runtime.request("what?", [picture(3)])], pruning, limits, Sampling()).finish()
        later = runtime.request("and what is this other thing?", [picture(4)])
        second = Generation.start(chain, [later], pruning, limits, Sampling(), first.caches).finish()
        spoken.append((first.tokens, second.tokens, second.caches.rows))
    assert spoken[0] == spoken[1]
    assert spoken[0][2][0].prefix_length > 2 * BUCKET


def test_one_request_cannot_see_the_caches_of_another(built: tuple[Bundle, Target], reference: Runtime) -> None:
    runtime = on(device(built))
    runtime.generate("secret", [picture(4)], limits=LONG)
    ours = runtime.generate("what?", [picture(5)], limits=LONG)
    assert ours.tokens == reference.generate("what?", [picture(5)], limits=LONG).tokens


def test_decode_steps_are_launched_as_graphs_one_per_bucket(built: tuple[Bundle, Target]) -> None:
    one = device(built)
    on(one).generate("what is it?", [picture(0)], pruning=Pruning(ratio=0.5), limits=LONG)
    simulated_cuda = one.cuda.runtime
    # 39 steps of two graphs; the first step of each (graph, bucket) runs plainly.
    assert 2 * 39 - 2 * 2 - 2 <= simulated_cuda.launches <= 2 * 39 - 2


def test_without_graphs_the_tokens_are_the_same(built: tuple[Bundle, Target], simulated: Runtime) -> None:
    plain = device(built, cuda_graphs=False)
    refused = device(built)
    refused.cuda.runtime.refuse_capture = True
    wanted = simulated.generate("what?", [picture(0)], limits=LONG).tokens
    for one in (plain, refused):
        runtime = on(one)
        assert runtime.generate("what?", [picture(0)], limits=LONG).tokens == wanted
        assert one.cuda.runtime.launches == 0
        assert runtime.chain._sessions["prefix"].no_graphs_because  # type: ignore[attr-defined]


def test_a_decode_step_allocates_nothing_and_reads_back_only_the_logits(built: tuple[Bundle, Target]) -> None:
    one = device(built)
    runtime, counts = on(one), []
    vocabulary = runtime.bundle.manifest.model.vocab_size
    for new in (8, 24):
        before = (one.cuda.runtime.allocations, one.cuda.runtime.copied_to_host)
        runtime.generate("what?", [picture(0)], limits=Limits(new_tokens=new, stop=()))
        counts.append((one.cuda.runtime.allocations - before[0], one.cuda.runtime.copied_to_host - before[1]))
    assert counts[0][0] >= counts[1][0]
    assert counts[1][1] - counts[0][1] == 16 * vocabulary * 4


def test_frames_that_are_on_the_gpu_already_stay_there(built: tuple[Bundle, Target], simulated: Runtime) -> None:
    """What another library put there comes as DLPack; the simulated GPU's memory stands for it."""
    one = device(built)
    runtime = on(one)
    request = runtime.request("what?", [picture(0)])
    pixels = request.vision_inputs["pixel_values"].astype(np.float16)
    wanted = runtime.generate("what?", [picture(0)], limits=LONG)
    frame = one.share(one.upload(pixels))
    allocated, taken = one.cuda.runtime.allocations, one.take(frame, "float16")
    assert taken.address == frame.tensor.address and one.cuda.runtime.allocations == allocated
    same = replace(request, vision_inputs={"pixel_values": frame})
    assert runtime.answers([same], limits=LONG)[0].tokens == wanted.tokens

    inside = Tensor(frame.tensor.address + 2, (4,), "float16", frame.tensor.owner)  # no address that TensorRT accepts
    copied_one = one.take(one.share(inside), "float16")
    assert copied_one.address % 256 == 0
    np.testing.assert_array_equal(one.download(copied_one), pixels.reshape(-1)[1:5])
    with pytest.raises(InputError, match="expected a tensor of float32 on the GPU, found float16"):
        one.take(frame, "float32")
    with pytest.raises(InputError, match="GPU 0, found one on GPU 1"):
        one.take(dlpack.Exported(frame.tensor, dlpack.CUDA, 1), "float16")
    np.testing.assert_array_equal(one.download(one.take(pixels.tolist(), "float16")), pixels)


def test_a_prompt_beyond_the_profile_is_refused_with_the_limit(simulated: Runtime) -> None:
    with pytest.raises(InputError, match=r"prefill profile.*1\.\.128.*--max-prompt"):
        simulated.generate("x" * 140, limits=Limits(new_tokens=1))


def test_more_than_the_capacity_is_refused_before_anything_runs(simulated: Runtime) -> None:
    with pytest.raises(InputError, match=r"within the 192 cache slots of the prefix engine"):
        simulated.generate("what?", [picture(0)], limits=Limits(new_tokens=180))


def test_a_batch_beyond_the_profile_is_refused(simulated: Runtime) -> None:
    with pytest.raises(InputError, match=r"decode profile.*--max-batch"):
        simulated.answers([simulated.request("a") for _ in range(5)], Pruning(), LONG)


def test_a_full_gpu_says_what_to_do(built: tuple[Bundle, Target]) -> None:
    one = device(built)
    one.cuda.runtime.memory = 1 << 16
    with pytest.raises(FastVError, match=r"enough GPU memory.*smaller batch"):
        on(one).generate("what?", [picture(0)])


def test_an_altered_plan_is_never_deserialized(built: tuple[Bundle, Target], tmp_path: Path) -> None:
    bundle = copied(built[0], tmp_path / "bundle")
    folder = bundle.path / "engines" / "small"
    folder.mkdir(parents=True)
    for path in built[1].path.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    target = Target.open(folder)
    one = device((bundle, target))
    (folder / "prefix.plan").write_bytes(b"something else")
    with pytest.raises(BundleError, match="altered"):
        one.session("prefix")


def test_an_engine_that_is_not_as_described_is_refused(built: tuple[Bundle, Target], monkeypatch: Any) -> None:
    monkeypatch.setattr(simulation.SimulatedEngine, "get_aliased_input_tensor", lambda self, name: None)
    with pytest.raises(FastVError, match=r"as engine\.json describes it"):
        device(built).session("prefix")


def test_this_machine_says_why_no_target_runs(built: tuple[Bundle, Target], rtx: Library) -> None:
    with pytest.raises(InputError, match="found small"):
        session_file.device(built[0], "other")
    if simulation.real_cuda.cudaGetDeviceCount()[0] != simulation.OK:
        with pytest.raises(UnavailableError, match=r"small: no NVIDIA GPU"):
            session_file.device(built[0])


# The simulation's own rules: breaking one fails.


def test_unset_addresses_and_other_aliases_are_violations(built: tuple[Bundle, Target]) -> None:
    one = device(built)
    session = one.session("prefix")
    with pytest.raises(simulation.Violation, match="is not set"):
        session._contexts[0].execute_async_v3(one.cuda.handle)
    runtime = on(one)
    caches = runtime.chain.caches([runtime.request("a")], [Pruning()], 2)
    other = runtime.chain.caches([runtime.request("a")], [Pruning()], 2)
    past, present = caches.prefix(0), other.prefix(0)
    tensors = {name: (past if name.startswith("past") else present)[name] for name in past}
    ids = np.zeros((1, 3), np.int64)
    tensors |= {name: one.upload(ids) for name in ("input_ids", "position_ids")}
    tensors |= {"slots": one.upload(np.arange(3)), "write_index": one.upload(np.zeros(1, np.int64))}
    tensors["image_features"] = one.zeros((0, runtime.bundle.manifest.model.hidden_size), "float16")
    with pytest.raises(FastVError, match="in the memory of past_key_values"):
        session.run(tensors)
    context = session._contexts[0]
    for name, tensor in tensors.items():
        context.set_tensor_address(name, tensor.address)
        if name in context._inputs:
            assert context.set_input_shape(name, tensor.shape)
    for name in ("hidden_states", "query_states"):
        context.set_tensor_address(name, one.zeros((1 << 16,), "float16").address)
    with pytest.raises(simulation.Violation, match="is not in the memory of"):
        context.execute_async_v3(one.cuda.handle)


def test_shapes_outside_the_active_profile_are_refused(built: tuple[Bundle, Target]) -> None:
    context = device(built).session("suffix")._contexts[1]
    assert context.set_input_shape("keep_indices", (4, 1))
    assert not context.set_input_shape("keep_indices", (5, 1))
    assert not context.set_input_shape("keep_indices", (4, 3))


def test_work_runs_only_when_the_stream_is_waited_for_and_memory_is_poisoned(built: tuple[Bundle, Target]) -> None:
    one = device(built)
    assert np.isnan(one.download(one.empty((4,), "float32"))).all()
    tensor = one.empty((4,), "float32")
    one.write(tensor, np.ones(4, np.float32))
    view = (simulation.ctypes.c_float * 4).from_address(tensor.address)
    assert np.isnan(view[0])
    one.cuda.synchronize()
    assert view[0] == 1.0


def test_memory_that_is_gone_is_not_read(built: tuple[Bundle, Target]) -> None:
    one = device(built)
    address = one.zeros((64,), "float32").address  # the tensor is dropped at once
    one.cuda.synchronize()
    with pytest.raises(simulation.Violation, match="illegal memory access"):
        one.cuda.read(address, np.empty(64, np.float32))


def test_waiting_and_allocating_cannot_be_captured(built: tuple[Bundle, Target]) -> None:
    for forbidden in (lambda one: one.cuda.synchronize(), lambda one: one.zeros((4,), "float32")):
        one = device(built)
        one.cuda.begin_capture()
        with pytest.raises(simulation.Violation, match="part of a capture"):
            forbidden(one)


def test_a_graph_keeps_the_addresses_it_was_captured_with(built: tuple[Bundle, Target]) -> None:
    one = device(built)
    first, second = one.zeros((4,), "float32"), one.zeros((4,), "float32")
    one.cuda.begin_capture()
    one.cuda.zero(first.address, 16)
    graph = one.cuda.end_capture()
    for tensor in (first, second):
        one.write(tensor, np.ones(4, np.float32))
    graph.launch()
    assert one.download(first).sum() == 0
    assert one.download(second).sum() == 4


# The simulation against the real API.


def offered(cls: type) -> list[str]:
    return [name for name, value in vars(cls).items() if not name.startswith("_") and callable(value)]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("SimulatedRuntime", "Runtime"),
        ("SimulatedEngine", "ICudaEngine"),
        ("SimulatedContext", "IExecutionContext"),
    ],
)
def test_every_simulated_name_and_argument_exists_in_tensorrt_rtx(ours: str, theirs: str) -> None:
    cls, real = getattr(simulation, ours), getattr(simulation.real, theirs)
    assert offered(cls)
    for name in offered(cls):
        documented = inspect.getdoc(getattr(real, name)) or ""
        for argument in list(inspect.signature(getattr(cls, name)).parameters)[1:]:
            assert re.search(rf"\b{argument}\b", documented), f"{theirs}.{name} has no {argument}"
    for name in ("num_io_tensors", "num_optimization_profiles"):
        assert isinstance(inspect.getattr_static(simulation.real.ICudaEngine, name), property)
    assert isinstance(inspect.getattr_static(simulation.real.Runtime, "engine_host_code_allowed"), property)


def test_every_simulated_cuda_call_exists_in_cuda_python() -> None:
    for name in offered(simulation.SimulatedCuda):
        if name.startswith("cuda"):
            real: Callable[..., Any] = getattr(simulation.real_cuda, name)
            documented = inspect.getdoc(real) or ""
            for argument in list(inspect.signature(getattr(simulation.SimulatedCuda, name)).parameters)[1:]:
                assert re.search(rf"\b{argument}\b", documented), f"{name} has no {argument}"


def test_the_session_uses_no_name_that_the_real_libraries_lack() -> None:
    source = inspect.getsource(session_file) + inspect.getsource(trt_session)
    for name in set(re.findall(r"\btrt\.([A-Z]\w+)", source)) - {"TrtDevice", "TrtSession"}:
        assert hasattr(simulation.real, name), name
    for name in set(re.findall(r'_call\("(\w+)"', inspect.getsource(inspect.getmodule(Cuda)))):  # type: ignore[arg-type]
        assert hasattr(simulation.real_cuda, name), name
