# ONNX Runtime's C++ API: its headers (1.17 or newer) and a library of 1.25 or newer, the first that runs TensorScatter.
# Give OnnxRuntime_ROOT, a folder as its release archives have it: include/ (or include/onnxruntime/) and lib/.
find_path(OnnxRuntime_INCLUDE_DIR onnxruntime_cxx_api.h
  PATH_SUFFIXES include include/onnxruntime include/onnxruntime/core/session)
find_library(OnnxRuntime_LIBRARY onnxruntime PATH_SUFFIXES lib lib64)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OnnxRuntime REQUIRED_VARS OnnxRuntime_LIBRARY OnnxRuntime_INCLUDE_DIR)
if(OnnxRuntime_FOUND AND NOT TARGET OnnxRuntime::OnnxRuntime)
  add_library(OnnxRuntime::OnnxRuntime UNKNOWN IMPORTED)
  set_target_properties(OnnxRuntime::OnnxRuntime PROPERTIES
    IMPORTED_LOCATION ${OnnxRuntime_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${OnnxRuntime_INCLUDE_DIR})
endif()
