// The picture reader's code, compiled once. Limits as in the Python package: 64 megapixels.
#define STB_IMAGE_IMPLEMENTATION
#define STBI_MAX_DIMENSIONS 65536
#include <stb/stb_image.h>
