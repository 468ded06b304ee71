// A device named cuda for a torch that is built without CUDA. Its memory is the host's and its kernels are the CPU's, so
// numbers are real; but torch keeps both devices apart, and so refuses what it refuses on a GPU.
//
// - Memory: an allocator of device type CUDA over torch's CPU allocator, and one of "pinned" memory, which is remembered.
// - Kernels: one boxed fallback for the dispatch key CUDA. It lends each CUDA tensor to the operator's CPU kernel as a CPU
//   tensor over the same memory, and labels what comes back.
// - Generators: a CPU generator with the label cuda; another one than its own is refused, as on a GPU.
// - Collectives: those of c10d for CUDA tensors go to the group's CPU backend (Gloo), over the same memory.
// - Waits: whatever would make the host wait for a GPU calls `strict_cuda_on_wait`'s function with its name.
// - Addresses: patches.py makes them unreadable; whoever reads there all the same gets one line before the signal ends it.
//
// Built against torch's own headers by build.py, and loaded before torch is imported (loader.py).
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/zeros_ops.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_set>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::IValue;
using torch::jit::Stack;

constexpr auto CUDA = c10::DeviceType::CUDA;

DeviceIndex count_of_devices() {
  static const DeviceIndex count = [] {
    const char* local = std::getenv("LOCAL_WORLD_SIZE");
    const int wanted = local ? std::atoi(local) : 1;
    return static_cast<DeviceIndex>(wanted > 0 && wanted < 64 ? wanted : 1);
  }();
  return count;
}

thread_local DeviceIndex current = 0;

Device place(DeviceIndex index) {
  const DeviceIndex chosen = index < 0 ? current : index;
  TORCH_CHECK(chosen < count_of_devices(), "CUDA error: invalid device ordinal");
  return {CUDA, chosen};
}

// -- waits ------------------------------------------------------------------------------------------------------------

using OnWait = void (*)(const char* what, int64_t bytes);
OnWait on_wait = nullptr;

void wait_for(const char* what, int64_t bytes = 0) {
  if (on_wait) on_wait(what, bytes);
}

// -- memory -----------------------------------------------------------------------------------------------------------

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? c10::alloc_cpu(bytes) : nullptr;
    return {data, data, &c10::free_cpu, Device(CUDA, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
} memory;

std::mutex pinned_lock;
std::map<const char*, size_t> pinned;  // begin of each block -> bytes

struct Pinned final : c10::Allocator {
  static void release(void* data) {
    {
      const std::lock_guard<std::mutex> held(pinned_lock);
      pinned.erase(static_cast<const char*>(data));
    }
    c10::free_cpu(data);
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? c10::alloc_cpu(bytes) : nullptr;
    if (data) {
      const std::lock_guard<std::mutex> held(pinned_lock);
      pinned[static_cast<const char*>(data)] = bytes;
    }
    return {data, data, &release, Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
} pinned_memory;

bool is_pinned(const void* data) {
  const std::lock_guard<std::mutex> held(pinned_lock);
  const char* wanted = static_cast<const char*>(data);
  auto after = pinned.upper_bound(wanted);
  return after != pinned.begin() && (--after, wanted < after->first + after->second);
}

// -- addresses that were read -----------------------------------------------------------------------------------------

constexpr uintptr_t NOWHERE = uintptr_t(1) << 62;  // as in patches.py
std::string at_fault;  // written where memory at such an address is read; empty until one was given
struct sigaction before_ours;

void on_fault(int number, siginfo_t* info, void*) {
  // x86-64 faults without an address where the address can be none of its own.
  const bool ours = info->si_code == SI_KERNEL || (info->si_code > 0 && reinterpret_cast<uintptr_t>(info->si_addr) & NOWHERE);
  if (ours && write(STDERR_FILENO, at_fault.data(), at_fault.size()) < 0) {}
  sigaction(number, &before_ours, nullptr);  // the same instruction faults again, and then the process ends by the signal
  if (info->si_code <= 0) raise(number);  // somebody has sent it: no instruction faults again
}

// -- random numbers ---------------------------------------------------------------------------------------------------

struct GeneratorOnHost final : c10::GeneratorImpl {
  at::Generator inner;

  GeneratorOnHost(Device device, at::Generator own)
      : c10::GeneratorImpl(device, c10::DispatchKeySet(c10::DispatchKey::CUDA)), inner(std::move(own)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "ALGORUN_CUDA_ON_CPU=strict: a generator has no offset here"); }
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.unsafeGetGeneratorImpl()->seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  GeneratorOnHost* clone_impl() const override { return new GeneratorOnHost(device(), inner.clone()); }
};

bool giving_defaults = false;  // while Python makes objects of the devices' own generators

at::Generator new_generator(Device device) {
  return at::make_generator<GeneratorOnHost>(device, at::detail::createCPUGenerator(c10::default_rng_seed_val));
}

const at::Generator& default_generator(DeviceIndex index) {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> made;
    for (DeviceIndex i = 0; i < count_of_devices(); ++i) made.push_back(new_generator({CUDA, i}));
    return made;
  }();
  return all.at(place(index).index());
}

at::Generator inner_of(const at::Generator& given, Device device) {
  const auto& used = given.defined() ? given : default_generator(device.index());
  TORCH_CHECK(used.device().type() == CUDA, "Expected a 'cuda' device type for generator but found '",
              c10::DeviceTypeName(used.device().type(), true), "'");
  return static_cast<GeneratorOnHost*>(used.unsafeGetGeneratorImpl())->inner;
}

// -- torch's questions about the device -------------------------------------------------------------------------------

c10::Stream stream_of(Device device) { return c10::Stream(c10::Stream::DEFAULT, device); }

struct Guard final : c10::impl::NoOpDeviceGuardImpl<CUDA> {
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return {CUDA, current}; }
  void setDevice(Device device) const override { current = place(device.index()).index(); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current = device.index();
  }
  c10::Stream getStream(Device device) const noexcept override { return stream_of(device); }
  c10::Stream getDefaultStream(Device device) const override { return stream_of(device); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return stream_of(device); }
  c10::Stream getNewStream(Device device, int) const override { return stream_of(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return stream_of(Device(CUDA, stream.device_index()));
  }
  DeviceIndex deviceCount() const noexcept override { return count_of_devices(); }
  void record(void**, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}  // the script has chosen what it waits for
  double elapsedTime(void*, void*, const DeviceIndex) const override { return 0; }
  void synchronizeStream(const c10::Stream&) const override { wait_for("Stream.synchronize"); }
  void synchronizeDevice(const DeviceIndex) const override { wait_for("synchronize"); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return count_of_devices(); }
  int getNumGPUs() const override { return count_of_devices(); }
  DeviceIndex getCurrentDevice() const override { return current; }
  DeviceIndex current_device() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override { current = place(index).index(); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    return std::exchange(current, place(index).index());
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  at::Allocator* getCUDADeviceAllocator() const override { return &memory; }
  Device getDeviceFromPtr(void*) const override { return {CUDA, current}; }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return giving_defaults ? default_generator(index) : new_generator(place(index));
  }
  void deviceSynchronize(DeviceIndex) const override { wait_for("synchronize"); }
};

struct Timer final : c10d::Timer {
  explicit Timer(Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto first = getTimeRef(start), last = getTimeRef(end);
    if (first < 0 || last < 0 || last < first) return std::nullopt;
    return last - first;
  }
};

// -- tensors lent to the CPU's kernels --------------------------------------------------------------------------------

void release_storage(void* held) { delete static_cast<c10::Storage*>(held); }

// The memory of `storage` under another device's name; it keeps `storage` alive.
c10::Storage relabelled(const c10::Storage& storage, Device device, c10::Allocator* allocator) {
  auto* held = new c10::Storage(storage);
  void* data = const_cast<void*>(storage.data());
  return {c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(data, held, &release_storage, device), allocator, true};
}

Tensor over(const Tensor& like, c10::Storage storage, c10::DispatchKey key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) impl->_set_conj(true);
  if (like.is_neg()) impl->_set_neg(true);
  return made;
}

bool on_device(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == CUDA; }

void check_strided(const Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided, "ALGORUN_CUDA_ON_CPU=strict has no ", tensor.layout(), " tensors");
}

Tensor lent(const Tensor& tensor) {
  check_strided(tensor);
  Device host(c10::DeviceType::CPU);
  return over(tensor, relabelled(tensor.storage(), host, c10::GetCPUAllocator()), c10::DispatchKey::CPU);
}

// One call of an operator: what was lent for it, and where its results belong.
struct Call {
  const c10::OperatorHandle& op;
  std::vector<std::pair<Tensor, Tensor>> loans;  // the device's tensor, the CPU's over the same memory
  Device device{c10::DeviceType::CPU};
  bool checked = true;

  const char* name() const { return op.schema().name().c_str(); }

  Tensor lend(const Tensor& tensor) {
    for (const auto& [own, other] : loans)
      if (own.is_same(tensor)) return other;
    loans.emplace_back(tensor, lent(tensor));
    return loans.back().second;
  }

  void refuse(const Tensor& tensor, const std::string& argument) const {
    if (!checked || !tensor.defined() || device.type() != CUDA || tensor.device() == device) return;
    if (tensor.device().type() == c10::DeviceType::CPU && tensor.dim() == 0) return;  // a number
    if (tensor.is_meta()) return;
    std::string plain(name());
    plain = plain.substr(plain.find("::") + 2);
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", device, " and ",
                tensor.device(), "! (when checking argument for argument ", argument, " in method wrapper_CUDA_", plain, ")");
  }

  // Takes the device of the first tensor that is on one.
  void find_device(const IValue& value) {
    if (value.isTensor()) {
      if (device.type() != CUDA && on_device(value.toTensor())) device = value.toTensor().device();
    } else if (value.isList()) {
      for (const IValue& each : value.toListRef()) find_device(each);
    } else if (value.isDevice() && device.type() != CUDA && value.toDevice().type() == CUDA) {
      device = place(value.toDevice().index());
    }
  }

  IValue lend_all(const IValue& value, const std::string& argument) {
    if (value.isTensor()) {
      const Tensor& tensor = value.toTensor();
      refuse(tensor, argument);
      return on_device(tensor) ? IValue(lend(tensor)) : value;
    }
    if (value.isList() && holds_tensors(*value.toList().elementType())) {
      auto made = c10::impl::GenericList(value.toList().elementType());
      for (const IValue& each : value.toListRef()) made.push_back(lend_all(each, argument));
      return made;
    }
    if (value.isDevice() && value.toDevice().type() == CUDA) return IValue(Device(c10::DeviceType::CPU));
    return value;
  }

  static bool holds_tensors(const c10::Type& type) {
    if (type.kind() == c10::TypeKind::TensorType) return true;
    if (const auto* list = type.castRaw<c10::ListType>()) return holds_tensors(*list->getElementType());
    if (const auto* optional = type.castRaw<c10::OptionalType>()) return holds_tensors(*optional->getElementType());
    return false;
  }

  // A kernel may have given a lent tensor new memory (resize_, out=): then the device's tensor follows.
  void follow() {
    for (auto& [own, other] : loans) {
      auto* impl = own.unsafeGetTensorImpl();
      if (other.storage().data() != own.storage().data() || other.storage().nbytes() != own.storage().nbytes()) {
        auto moved = relabelled(other.storage(), own.device(), &memory);
        own.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(moved.mutable_data_ptr()));
        own.storage().unsafeGetStorageImpl()->set_nbytes(other.storage().nbytes());
      }
      if (other.sizes() != own.sizes() || other.strides() != own.strides() || other.storage_offset() != own.storage_offset())
        impl->set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
    }
  }

  Tensor returned(const Tensor& result) const {
    if (!result.defined() || on_device(result) || result.is_meta()) return result;
    for (const auto& [own, other] : loans)
      if (result.is_same(other)) return own;
    if (device.type() != CUDA) return result;
    check_strided(result);
    if (result._is_zerotensor())  // a gradient that is known to be 0 has no memory
      return at::_ops::zeros::call(result.sym_sizes(), result.scalar_type(), {}, device, {});
    for (const auto& [own, other] : loans)
      if (result.has_storage() && result.storage().data() == own.storage().data() && result.storage().nbytes())
        return over(result, own.storage(), c10::DispatchKey::CUDA);  // a view
    return over(result, relabelled(result.storage(), device, &memory), c10::DispatchKey::CUDA);
  }

  IValue return_all(const IValue& value) const {
    if (value.isTensor()) return returned(value.toTensor());
    if (value.isList() && holds_tensors(*value.toList().elementType())) {
      auto made = c10::impl::GenericList(value.toList().elementType());
      for (const IValue& each : value.toListRef()) made.push_back(return_all(each));
      return made;
    }
    return value;
  }

  void run(Stack* stack) {
    const auto& arguments = op.schema().arguments();
    auto* first = stack->data() + (stack->size() - arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) find_device(first[i]);
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (is_generator(arguments[i]) && device.type() == CUDA)
        first[i] = IValue(inner_of(first[i].isNone() ? at::Generator() : first[i].toGenerator(), device));
      else
        first[i] = lend_all(first[i], arguments[i].name());
    }
    {
      at::AutoDispatchBelowADInplaceOrView below;
      c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    }
    follow();
    const size_t results = op.schema().returns().size();
    for (size_t i = stack->size() - results; i < stack->size(); ++i) (*stack)[i] = return_all((*stack)[i]);
  }

  static bool is_generator(const c10::Argument& argument) {
    if (const auto* optional = argument.type()->castRaw<c10::OptionalType>())
      return optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
    return argument.type()->kind() == c10::TypeKind::GeneratorType;
  }
};

// Operators whose result has a shape that depends on values, or that give the host a value.
const std::unordered_set<std::string> WAITING = {
    "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::bincount", "aten::_local_scalar_dense",
    "aten::argwhere", "aten::histogram",
};
// Operators of CUDA that take tensors of the host: lengths of sequences, and what they copy themselves.
const std::unordered_set<std::string> MIXED = {"aten::_pack_padded_sequence", "aten::_pin_memory"};
// Those that copy indices of the host to the device first.
const std::unordered_set<std::string> INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"};

bool has_index_on_host(const IValue& indices) {
  for (const IValue& each : indices.toListRef())
    if (each.isTensor() && each.toTensor().defined() && each.toTensor().device().type() == c10::DeviceType::CPU) return true;
  return false;
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  Call call{op};
  const bool indexed = INDEXED.count(op.schema().name()) != 0;
  call.checked = !indexed && MIXED.count(op.schema().name()) == 0;
  if (indexed && has_index_on_host((*stack)[stack->size() - op.schema().arguments().size() + 1]))
    wait_for("copy from pageable memory");
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), "ALGORUN_CUDA_ON_CPU=strict cannot run ", call.name(),
      ": it has a kernel for GPUs and none for the CPU; fix: choose what has one",
      std::string(call.name()).find("attention") == std::string::npos ? "" : " (attention 'sdpa' or 'eager')",
      ", or ALGORUN_CUDA_ON_CPU=1, or a machine with a GPU");
  if (WAITING.count(op.schema().name())) wait_for(call.name());
  if (op.schema().name() == "aten::repeat_interleave" && stack->back().isNone()) wait_for(call.name());
  call.run(stack);
}

// Gloo's work has the lent tensors as its result; DDP would copy them to its buckets, where they are already.
c10::intrusive_ptr<c10d::Work> with_result(const c10::intrusive_ptr<c10d::Work>& work, const IValue& tensors, Device device) {
  auto given = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), std::vector<Device>{device});
  work->getFuture()->addCallback([given, tensors](c10::ivalue::Future& done) {
    if (done.hasError())
      given->setError(done.exception_ptr());
    else
      given->markCompleted(tensors);
  });
  return c10d::Work::create_from_future(given);
}

void collective(const c10::OperatorHandle& op, Stack* stack) {
  Call call{op};
  call.checked = false;
  if (op.schema().name() == "c10d::barrier") wait_for("barrier");
  call.run(stack);
  if (op.schema().name() == "c10d::allreduce_" && call.device.type() == CUDA) {
    auto work = stack->back().toCustomClass<c10d::Work>();
    stack->back() = IValue(with_result(work, (*stack)[stack->size() - 2], call.device));
  }
}

// -- operators that the fallback cannot do ----------------------------------------------------------------------------

Tensor& copy_(Tensor& self, const Tensor& from, bool non_blocking) {
  const bool down = on_device(from) && !on_device(self), up = on_device(self) && !on_device(from);
  const bool is_meta = self.is_meta() || from.is_meta();
  if ((down || up) && !is_meta && from.numel()) {
    const Tensor& host = down ? self : from;
    // torch makes a temporary copy, which is not pinned, where type or layout change on the way.
    const bool as_it_is = host.is_non_overlapping_and_dense() && self.dtype() == from.dtype() &&
                          self.sizes() == from.sizes() && self.strides() == from.strides();
    const bool free = non_blocking && as_it_is && is_pinned(host.const_data_ptr());
    if (!free && down) wait_for("copy from the device", static_cast<int64_t>(from.nbytes()));
    if (!free && up) wait_for(is_pinned(host.const_data_ptr()) ? "blocking copy to the device" : "copy from pageable memory", static_cast<int64_t>(from.nbytes()));
  }
  if (is_meta) return self;
  at::AutoDispatchBelowADInplaceOrView below;
  (on_device(self) ? lent(self) : self).copy_(on_device(from) ? lent(from) : from);
  return self;
}

at::Scalar local_scalar(const Tensor& self) {
  wait_for("item");
  at::AutoDispatchBelowADInplaceOrView below;
  return at::_ops::_local_scalar_dense::call(lent(self));
}

Tensor& set_to(Tensor& self, const c10::Storage& storage, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(storage);
  if (strides.empty() && !sizes.empty()) {
    impl->set_sizes_contiguous(sizes);
    impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  return self;
}

Tensor& set_storage_offset(Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  return set_to(self, storage, offset.expect_int(), C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides));
}

Tensor& set_storage(Tensor& self, at::Storage storage) {
  const auto items = static_cast<int64_t>(storage.nbytes() / self.itemsize());
  return set_to(self, storage, 0, {items}, {1});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_to(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_nothing(Tensor& self) {
  return set_to(self, c10::Storage(c10::Storage::use_byte_size_t(), 0, memory.allocate(0), &memory, true), 0, {0}, {1});
}

void record_stream(Tensor&, at::Stream) {}

// The CPU's kernel draws from the CPU's generator.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {input, at::_ops::ones_like::call(input, at::kBool, {}, {}, {}, {})};
  Tensor mask = at::_ops::empty_like::call(input, at::kBool, {}, {}, {}, {});
  mask.bernoulli_(1 - p);
  return {input.mul(mask).mul(p == 1 ? 0.0 : 1 / (1 - p)), mask};
}

// Attention in its parts: the fused kernels of a GPU do not exist here.
int64_t attention_in_parts(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>, bool) {
  return 0;
}

// cuDNN and MIOpen have a CTC loss of their own.
bool no_other_ctc(const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) { return false; }
bool no_other_ctc_of_tensors(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) { return false; }

// torch's own functions of these choose among kernels for GPUs by the device.
const char* const CHOOSING[] = {"convolution", "convolution_backward"};

// -- registrations ----------------------------------------------------------------------------------------------------

struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

const char* const COLLECTIVES[] = {
    "allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_", "_allgather_base_", "allgather_coalesced_",
    "allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_",
    "gather_", "scatter_", "alltoall_", "alltoall_base_", "barrier", "send", "recv_", "recv_any_source_",
};

struct Registered {
  std::vector<torch::Library> libraries;
  c10::impl::DeviceGuardImplRegistrar guard{CUDA, new Guard};

  Registered() {
    Silent silent;
    c10::WarningUtils::WarningHandlerGuard quiet(&silent);  // torch's own collectives for CUDA are replaced
    c10::SetAllocator(CUDA, &memory);
    at::CUDAHooksRegistry()->Register(
        "CUDAHooks", [](at::CUDAHooksArgs args) -> std::unique_ptr<at::CUDAHooksInterface> { return std::make_unique<Hooks>(args); });
    c10d::TimerRegistry()->Register(
        CUDA, [](Device device) -> std::unique_ptr<c10d::Timer> { return std::make_unique<Timer>(device); });
    at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&attention_in_parts);
    libraries.emplace_back(torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    libraries.back().fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
    libraries.emplace_back(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    aten(libraries.back());
    libraries.emplace_back(torch::Library::IMPL, "c10d", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    for (const char* name : COLLECTIVES) libraries.back().impl(name, torch::CppFunction::makeFromBoxedFunction<&collective>());
  }

  static void aten(torch::Library& own) {
    own.impl("copy_", TORCH_FN(copy_));
    own.impl("_local_scalar_dense", TORCH_FN(local_scalar));
    own.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset));
    own.impl("set_.source_Storage", TORCH_FN(set_storage));
    own.impl("set_.source_Tensor", TORCH_FN(set_tensor));
    own.impl("set_", TORCH_FN(set_nothing));
    own.impl("record_stream", TORCH_FN(record_stream));
    own.impl("native_dropout", TORCH_FN(native_dropout));
    for (const std::string& name : {"_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"}) {
      own.impl(name.c_str(), TORCH_FN(no_other_ctc));
      own.impl((name + ".Tensor").c_str(), TORCH_FN(no_other_ctc_of_tensors));
    }
    for (const char* name : CHOOSING) own.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
} registered;

}  // namespace

extern "C" {
__attribute__((visibility("default"))) void strict_cuda_on_wait(OnWait function) { on_wait = function; }
// From now on `line` is written to stderr where the process reads memory at an address of the device. Call it once.
__attribute__((visibility("default"))) void strict_cuda_at_fault(const char* line) {
  at_fault = line;
  struct sigaction ours {};
  ours.sa_sigaction = &on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &ours, &before_ours);
}
__attribute__((visibility("default"))) int strict_cuda_count() { return count_of_devices(); }
// While it is on, torch.Generator("cuda") is the device's own generator: torch.cuda.default_generators has these.
__attribute__((visibility("default"))) void strict_cuda_give_defaults(bool on) { giving_defaults = on; }
// UntypedStorage.resize_, which torch has for CUDA only where it is built with it. `storage`: the address of the StorageImpl.
__attribute__((visibility("default"))) void strict_cuda_resize(void* storage, size_t bytes) {
  auto* impl = static_cast<c10::StorageImpl*>(storage);
  c10::DataPtr made = memory.allocate(bytes);
  made.unsafe_set_device(impl->device());
  if (bytes && impl->nbytes()) std::memcpy(made.get(), impl->data(), std::min(bytes, impl->nbytes()));
  impl->set_data_ptr_noswap(std::move(made));
  impl->set_nbytes(bytes);
}
}
