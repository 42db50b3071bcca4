/* The members of `smelt data` in files of their own. */
#pragma once

#include "app/command.h"

extern const Command command_data_encode, command_data_decode;
