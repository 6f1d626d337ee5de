# find_package(EdgeModel 1) gives the targets EdgeModel::EdgeModel and EdgeModel::Static.
get_filename_component(_edge_model "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET EdgeModel::EdgeModel)
  add_library(EdgeModel::EdgeModel SHARED IMPORTED)
  set_target_properties(
    EdgeModel::EdgeModel
    PROPERTIES IMPORTED_LOCATION "${_edge_model}/lib/@LIBRARY@" IMPORTED_SONAME "@LIBRARY@"
               INTERFACE_INCLUDE_DIRECTORIES "${_edge_model}/include")
  add_library(EdgeModel::Static STATIC IMPORTED)
  set_target_properties(
    EdgeModel::Static
    PROPERTIES IMPORTED_LOCATION "${_edge_model}/lib/libedge_model.a"
               INTERFACE_INCLUDE_DIRECTORIES "${_edge_model}/include"
               # The library of a model takes TVM's functions from the application.
               INTERFACE_LINK_OPTIONS "-rdynamic;-Wl,--gc-sections"
               INTERFACE_LINK_LIBRARIES "pthread;dl;m;gcc_eh")
endif()
unset(_edge_model)
