# Runs CONFORMANCE on the driver in the folder DRIVER and compares its output with the record:
#   cmake -DCONFORMANCE= -DCOMPARE= -DDRIVER= -DSOURCE= -DOUTPUT= [-DPRELOAD=] -P check.cmake
# PRELOAD is a library that is preloaded.
set(ENV{LD_LIBRARY_PATH} "${DRIVER}:$ENV{LD_LIBRARY_PATH}")
if(PRELOAD)
  set(CONFORMANCE ${CMAKE_COMMAND} -E env LD_PRELOAD=${PRELOAD} ${CONFORMANCE})
endif()
execute_process(COMMAND ${CONFORMANCE} OUTPUT_FILE ${OUTPUT} RESULT_VARIABLE ended)
if(NOT ended EQUAL 0)
  message(FATAL_ERROR "${CONFORMANCE} ended with ${ended}")
endif()
execute_process(
  COMMAND ${COMPARE} ${SOURCE}/expected_h200.txt ${OUTPUT} ${SOURCE}/differences.txt
  RESULT_VARIABLE differs)
if(NOT differs EQUAL 0)
  message(FATAL_ERROR "${OUTPUT} differs from the record on a real card")
endif()
