# SPDX-License-Identifier: BSD-3-Clause
# Helpers for the module CMakeLists files.

# cpc_module(NAME SOURCE...): adds the sources of core/NAME to the core library.
function(cpc_module name)
	foreach(source IN LISTS ARGN)
		target_sources(coppice-core PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${source})
	endforeach()
endfunction()

# cpc_test(NAME LABEL SOURCE...): a cmocka program linked with the core, run by CTest.
function(cpc_test name label)
	add_executable(${name} ${ARGN})
	target_link_libraries(${name} PRIVATE coppice-core PkgConfig::CMOCKA)
	add_test(NAME ${name} COMMAND ${name})
	set_tests_properties(${name} PROPERTIES LABELS "${label}" TIMEOUT 900 SKIP_RETURN_CODE 77)
endfunction()
