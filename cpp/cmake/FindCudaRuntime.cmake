# The CUDA runtime without the CUDA language: headers and libcudart. Give CudaRuntime_ROOT, or CUDA_HOME.
find_path(CudaRuntime_INCLUDE_DIR cuda_runtime_api.h HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES include)
find_library(CudaRuntime_LIBRARY NAMES cudart libcudart.so.13 libcudart.so.12
  HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES lib64 lib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CudaRuntime REQUIRED_VARS CudaRuntime_LIBRARY CudaRuntime_INCLUDE_DIR)
if(CudaRuntime_FOUND AND NOT TARGET CudaRuntime::CudaRuntime)
  add_library(CudaRuntime::CudaRuntime UNKNOWN IMPORTED)
  set_target_properties(CudaRuntime::CudaRuntime PROPERTIES
    IMPORTED_LOCATION ${CudaRuntime_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${CudaRuntime_INCLUDE_DIR})
endif()
