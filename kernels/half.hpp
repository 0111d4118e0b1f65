// Where kernels look for core/half.hpp.
#pragma once

#include "core/half.hpp"
